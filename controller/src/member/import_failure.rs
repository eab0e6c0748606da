//! The failure of an import, as an Event and an issue.

use crate::{
    issue_code::IssueCode,
    plan::{ApiServer, ObjectRef, Plan, WritableKind},
};

/// The reason of Events about imports.
pub(super) const IMPORT_FAILED: &str = "ServiceImportFailed";

/// Reports a failure in the log and on the object.
pub(super) fn report_failure<K: WritableKind>(object: &K, message: String, plan: &mut Plan) {
    plan.warning_event(ApiServer::Local, object, IMPORT_FAILED, message.clone());
    plan.issue(
        IssueCode::ImportFailed,
        ObjectRef::new(ApiServer::Local, object).to_string(),
        message,
    );
}

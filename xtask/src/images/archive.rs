//! Image tars: one layer, its configuration and the manifest, in the form `docker save` writes and containerd
//! imports. Pure and deterministic: the same contents give the same bytes.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

/// A container image.
#[derive(Clone, Debug, Default)]
pub(crate) struct Image {
    /// Name and tag.
    pub(crate) reference: String,
    /// The entry point.
    pub(crate) entrypoint: Vec<String>,
    /// User id and group id it runs as.
    pub(crate) user: u32,
    /// Contents by path without the leading slash. Sorted, so parents precede children.
    contents: BTreeMap<String, Content>,
}

/// One path of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Content {
    Directory { mode: u32 },
    File { bytes: Vec<u8>, mode: u32 },
    Link { target: String },
}

// === impl Image ===

impl Image {
    /// An image with the directories every container expects.
    pub(crate) fn new(reference: &str, entrypoint: &[&str]) -> Self {
        let mut image = Self {
            reference: reference.to_owned(),
            entrypoint: entrypoint.iter().map(|&word| word.to_owned()).collect(),
            ..Self::default()
        };
        for path in ["dev", "etc", "proc", "run", "sys"] {
            image.directory(path, 0o755);
        }
        image.directory("tmp", 0o1777);
        image
    }

    /// Adds a directory.
    pub(crate) fn directory(&mut self, path: &str, mode: u32) {
        self.insert(path, Content::Directory { mode });
    }

    /// Adds a file.
    pub(crate) fn file(&mut self, path: &str, bytes: Vec<u8>, mode: u32) {
        self.insert(path, Content::File { bytes, mode });
    }

    /// Adds a symbolic link.
    pub(crate) fn link(&mut self, path: &str, target: &str) {
        let target = target.to_owned();
        self.insert(path, Content::Link { target });
    }

    fn insert(&mut self, path: &str, content: Content) {
        let path = path.trim_start_matches('/');
        for (end, _) in path.match_indices('/') {
            let parent = path.get(..end).unwrap_or_default().to_owned();
            self.contents
                .entry(parent)
                .or_insert(Content::Directory { mode: 0o755 });
        }
        self.contents.insert(path.to_owned(), content);
    }

    /// The image as a tar file.
    pub(crate) fn to_tar(&self) -> Result<Vec<u8>> {
        let layer = self.layer()?;
        let layer_digest = digest(&layer);
        let user = self.user;
        let config = serde_json::to_vec(&json!({
            "architecture": architecture(),
            "os": "linux",
            "config": {
                "Entrypoint": self.entrypoint,
                "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
                "User": format!("{user}:{user}"),
                "WorkingDir": "/",
            },
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer_digest}")]},
            "history": [{"created_by": "cargo xtask images"}],
        }))?;
        let (layer_name, config_name) = (format!("{layer_digest}.tar"), format!("{}.json", digest(&config)));
        let manifest = serde_json::to_vec(&json!([{
            "Config": config_name,
            "RepoTags": [self.reference],
            "Layers": [layer_name],
        }]))?;
        let mut tar = Builder::new(Vec::new());
        for (name, bytes) in [
            (layer_name.as_str(), &layer),
            (config_name.as_str(), &config),
            ("manifest.json", &manifest),
        ] {
            append_file(&mut tar, name, bytes, 0o644)?;
        }
        tar.into_inner().context("image tar")
    }

    fn layer(&self) -> Result<Vec<u8>> {
        let mut tar = Builder::new(Vec::new());
        for (path, content) in &self.contents {
            match content {
                Content::Directory { mode } => {
                    let mut header = header(EntryType::Directory, 0, *mode);
                    tar.append_data(&mut header, format!("{path}/"), std::io::empty())
                }
                Content::Link { target } => {
                    let mut header = header(EntryType::Symlink, 0, 0o777);
                    tar.append_link(&mut header, path, target)
                }
                Content::File { bytes, mode } => {
                    append_file(&mut tar, path, bytes, *mode)?;
                    Ok(())
                }
            }
            .with_context(|| format!("{}: {path}", self.reference))?;
        }
        tar.into_inner().with_context(|| self.reference.clone())
    }
}

fn append_file(tar: &mut Builder<Vec<u8>>, path: &str, bytes: &[u8], mode: u32) -> Result<()> {
    let size = u64::try_from(bytes.len())?;
    let mut header = header(EntryType::Regular, size, mode);
    tar.append_data(&mut header, path, bytes)
        .with_context(|| path.to_owned())
}

/// A header independent of machine and time: owner root, time zero.
fn header(kind: EntryType, size: u64, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

/// This machine's architecture, as images name it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn image(paths: &[&str]) -> Image {
        let mut image = Image::new("test/image:latest", &["/usr/bin/it"]);
        for path in paths {
            image.file(path, b"content".to_vec(), 0o755);
        }
        image.link("bin/sh", "/usr/bin/it");
        image
    }

    fn entries(tar: &[u8]) -> BTreeMap<String, Vec<u8>> {
        let mut archive = tar::Archive::new(tar);
        let entries = archive.entries().unwrap();
        entries
            .map(|entry| {
                let mut entry = entry.unwrap();
                assert_eq!(entry.header().mtime().unwrap(), 0);
                let mut bytes = Vec::new();
                entry.read_to_end(&mut bytes).unwrap();
                (entry.path().unwrap().display().to_string(), bytes)
            })
            .collect()
    }

    #[test]
    fn the_order_of_additions_does_not_change_the_bytes() {
        let one = image(&["usr/bin/it", "etc/a"]).to_tar().unwrap();
        let other = image(&["/etc/a", "/usr/bin/it"]).to_tar().unwrap();
        assert!(one == other);
        assert!(one != image(&["usr/bin/it"]).to_tar().unwrap());
    }

    #[test]
    fn manifest_configuration_and_layer_reference_one_another() {
        let files = entries(&image(&["usr/bin/it"]).to_tar().unwrap());
        let manifest: serde_json::Value = serde_json::from_slice(&files["manifest.json"]).unwrap();
        assert_eq!(manifest[0]["RepoTags"][0], "test/image:latest");
        let layer = &files[manifest[0]["Layers"][0].as_str().unwrap()];
        let config: serde_json::Value =
            serde_json::from_slice(&files[manifest[0]["Config"].as_str().unwrap()]).unwrap();
        assert_eq!(
            config["rootfs"]["diff_ids"][0],
            format!("sha256:{}", digest(layer))
        );
        assert_eq!(config["config"]["Entrypoint"][0], "/usr/bin/it");
    }

    #[test]
    fn parents_exist_and_precede_their_children() {
        let image = image(&["usr/lib/x/libc.so"]);
        let paths: Vec<_> = image.contents.keys().map(String::as_str).collect();
        let at = |path| paths.iter().position(|p| *p == path).unwrap();
        assert!(
            at("usr") < at("usr/lib") && at("usr/lib/x") < at("usr/lib/x/libc.so"),
            "{paths:?}"
        );
    }
}

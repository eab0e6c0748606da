//! Any order of probes and replies, compared with a model that keeps every sequence number.
//!
//! *Properties*: a reply is accepted once, for a sent probe, and only if it is newer than the last one; a next hop is
//! dead exactly when more probes than allowed are unanswered; a recovered one is held down.

use std::collections::BTreeSet;

use mc_gateway_common::{
    abi::liveness::{ProbeReply, ProbeSent},
    liveness::{ReceivedReply, State, accept_reply, state},
    verdict::DropReason,
};

const ID: u32 = 7;

/// Three bytes of settings, then one operation per byte.
pub fn liveness(data: &[u8]) {
    let Some((&[detect, hold, start], operations)) = data.split_first_chunk::<3>() else {
        return;
    };
    let (detect, hold_down_ms) = (u32::from(detect % 8), u32::from(hold) * 10);
    // Sequence numbers start close to their wrap-around.
    let first = u32::MAX - u32::from(start);
    let mut sent = ProbeSent {
        id: ID,
        sequence: first,
    };
    let mut seen = ProbeReply {
        id: ID,
        sequence: first,
        ..ProbeReply::default()
    };
    let mut now = 1_u64;
    // Counted from zero, without wrap-around.
    let (mut probes, mut newest) = (0_u32, 0_u32);
    let mut taken: BTreeSet<u32> = BTreeSet::new();
    for operation in operations {
        now += u64::from(operation >> 4) * 20_000_000;
        match operation & 3 {
            0 | 1 => {
                probes += 1;
                sent.sequence = sent.sequence.wrapping_add(1);
            }
            _ => {
                // 0 is the last sent probe, 7 one that was not sent.
                let back = u32::from(operation >> 2 & 3) + u32::from(operation & 1) * 4;
                let number = if back == 7 {
                    Some(probes + 1)
                } else {
                    probes.checked_sub(back)
                };
                let Some(number) = number else { continue };
                let answer = ReceivedReply {
                    sequence: first.wrapping_add(number),
                    rtt: 5,
                    now,
                };
                let was_dead = detect != 0 && probes - newest > detect;
                match accept_reply(sent, seen, answer, detect, hold_down_ms) {
                    Ok(new) => {
                        assert!(
                            number <= probes && number > newest,
                            "{number} of {newest}..{probes}"
                        );
                        assert!(taken.insert(number), "{number} accepted twice");
                        assert_eq!((new.id, new.at), (ID, now));
                        if was_dead && hold_down_ms != 0 {
                            assert_eq!(new.held_since, now, "recovery without a hold-down");
                        }
                        (seen, newest) = (new, number);
                    }
                    Err(DropReason::ProbeUnsent) => assert!(number > probes),
                    Err(DropReason::ProbeStale) => assert!(number <= newest),
                    Err(other) => panic!("{other:?}"),
                }
            }
        }
        let is = state(ID, sent, seen, detect);
        let dead = detect != 0 && probes - newest > detect;
        assert_eq!(is == State::Dead, dead, "{probes} sent, {newest} answered");
        if detect == 0 {
            assert_eq!(is, State::Alive);
        }
    }
}

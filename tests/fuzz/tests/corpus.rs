//! Replay of every target's corpus.

use std::{fs, path::Path};

use mc_fuzz::TARGETS;

#[test]
fn the_corpus_holds_all_properties() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut replayed = 0;
    for (name, target) in TARGETS {
        let dir = corpus.join(name);
        let mut files: Vec<_> = fs::read_dir(&dir)
            .unwrap_or_else(|error| panic!("{}: {error}", dir.display()))
            .map(|entry| entry.expect("an entry").path())
            .collect();
        files.sort();
        assert!(!files.is_empty(), "{name} has no corpus");
        for file in files {
            // Adds the input's path to a panic.
            let held = std::panic::catch_unwind(|| target(&fs::read(&file).expect("an input")));
            assert!(held.is_ok(), "{}", file.display());
            replayed += 1;
        }
    }
    println!("{replayed} inputs replayed");
}

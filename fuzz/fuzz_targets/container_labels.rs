//! What runtimes tell of containers: an answer of Docker's API, and the files of containerd and
//! CRI-O.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use weir_daemon::identity::{ContainerRuntime, Inspected, labels_in_config};

#[derive(Debug, Arbitrary)]
struct Input {
    answer: Vec<u8>,
    /// What stands behind the head of an answer, or in an annotation.
    text: String,
    group: String,
    slice: String,
    prefix: String,
    name: String,
}

const MOST: usize = 64 << 10;

fn quoted(text: &str) -> String {
    format!(
        "{:?}",
        text.chars()
            .filter(|c| c.is_ascii_graphic())
            .collect::<String>()
    )
}

fuzz_target!(|input: Input| {
    let whole = format!("HTTP/1.0 200 OK\r\n\r\n{}", input.text);
    let labels = quoted(&input.text);
    let made = format!(
        "HTTP/1.0 200 OK\r\n\r\n{{\"State\":{{\"Pid\":1}},\"Config\":{{\"Labels\":{{{labels}:{labels}}}}}}}"
    );
    for answer in [&input.answer[..], whole.as_bytes(), made.as_bytes()] {
        match Inspected::in_answer(answer) {
            Ok(Some(found)) => {
                // Its first process is nowhere.
                assert!(found.labels_at("", &input.group).is_err());
            }
            Ok(None) => {}
            Err(error) => assert!(
                !error.to_string().chars().any(char::is_control),
                "{error:?}"
            ),
        }
    }
    let paths = [
        quoted(&input.group),
        quoted(&format!("{}:{}:{}", input.slice, input.prefix, input.name)),
    ];
    for path in paths {
        let config = format!(
            "{{\"annotations\":{{\"io.kubernetes.cri-o.Labels\":{labels},\"io.kubernetes.cri.sandbox-namespace\":\"shop\"}},\"linux\":{{\"cgroupsPath\":{path}}}}}"
        );
        let own = path.trim_matches('"');
        for (text, group) in [
            (config.as_bytes(), own),
            (config.as_bytes(), &input.group),
            (&input.answer, &input.group),
            (input.text.as_bytes(), &input.group),
        ] {
            for runtime in [ContainerRuntime::Containerd, ContainerRuntime::CriO] {
                let Ok(labels) = labels_in_config(text, group, runtime) else {
                    continue;
                };
                let bytes: usize = labels.iter().map(|(k, v)| k.len() + v.len()).sum();
                assert!(!labels.is_empty() && bytes <= MOST);
                assert!(group.starts_with('/'), "{group:?}");
                // It is no other's.
                assert!(labels_in_config(text, &format!("{group}/x"), runtime).is_err());
            }
        }
    }
});

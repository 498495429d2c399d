//! Messages of the service's socket: header, JSON, what is asked for.

use serde_json::json;
use xway_control::message::Request;
use xway_control::{Config, wire};

pub(super) fn run(data: &[u8]) {
    if let Some((header, body)) = data.split_first_chunk::<{ wire::HEADER }>() {
        if let Ok(length) = wire::length(header, wire::MESSAGE_MAX) {
            assert!(length <= wire::MESSAGE_MAX);
        }
        decode(body);
    }
    decode(data);
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(config) = Config::parse(text)
    {
        // What was accepted is written down and read again as it is: the state of the service is such a text.
        let written = toml::to_string(&config).expect("a configuration is text");
        assert_eq!(Config::parse(&written).expect("and it is read again"), config);
    }
}

fn decode(body: &[u8]) {
    let Ok(request) = wire::decode::<Request>(body) else { return };
    let again = serde_json::to_vec(&request).expect("a request is JSON");
    let read = wire::decode::<Request>(&again).expect("and it is read again");
    // Numbers that are no JSON have no equal.
    assert_eq!(serde_json::to_value(&read).ok(), serde_json::to_value(&request).ok());
    let _ = request.changes();
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let requests = [
        json!({"do": "map_create", "name": "x", "spec": {"type": 1, "key_size": 4, "value_size": 4, "max_entries": 4}}),
        json!({"do": "map_update_batch", "id": 3, "entries": [["AAAA", "AAAA"]], "flags": 1}),
        json!({"do": "load", "object": "f0VMRg==", "programs": ["f"], "pins": "/p"}),
        json!({"do": "attach", "request": {"port": "p", "queue": 1, "program": 1, "priority": 1, "chain_on": 4,
            "replace": "id:1", "chain": true}}),
        json!({"do": "test_run", "id": 1, "data": "AAAA", "ctx": null, "repeat": 9}),
        json!({"do": "steer", "port": "p", "words": "flow-type udp4 dst-port 53 action 1"}),
        json!({"do": "share", "map": 3, "read_only": true}),
        json!({"do": "maps", "later": 0}),
    ];
    let mut all: Vec<Vec<u8>> = requests.iter().map(|r| r.to_string().into_bytes()).collect();
    all.push([&[2, 0, 0, 0, 1, 0, 0, 0][..], b"{}"].concat());
    all.push(
        b"[service]\nworkers = 2\n[[port]]\nname = \"sim:a?flows=9\"\nsteer = [\"flow-type ether action 0\"]\n[[program]]\n\
          name = \"f\"\nport = \"sim:a?flows=9\"\nobject = \"f.o\"\n[[socket]]\npath = \"/x\"\n"
            .to_vec(),
    );
    all
}

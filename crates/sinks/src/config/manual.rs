//! `[sink.NAME]` in weir.toml(5): a table for each kind.

use weir_config::manual::{
    ENABLED, Key, NONE, Table,
    Usual::{Is, Means, Required},
    key,
};

const EVENTS: Key = key(
    "events",
    Means(
        "[\"ban\", \"unban\", \"error\", \"start\", \"stop\"]; all that format = \"ipt_geofence\" has",
    ),
    "Which events it gets.",
);
const FORMAT: Key = key("format", Is("\"weir\""), "How an event is written.");
const QUEUE: Key = key(
    "queue",
    Is("4096"),
    "Events that wait for a slow receiver; of more the oldest are dropped, counted and told.",
);
const RATE: &str = "Events a minute; the rest is counted and told as a number.";

/// One for each kind of sink.
pub const MANUAL: &[Table] = &[
    Table {
        name: "sink.NAME",
        about: "With kind = \"webhook\": HTTP POST of each event.",
        needs: &[("kind", "\"webhook\""), ("url", "\"https://localhost/\"")],
        keys: &[
            key(
                "kind",
                Required,
                "Where events go; the keys below belong to \"webhook\".",
            ),
            ENABLED,
            key("url", Required, "Whereto."),
            key(
                "token_file",
                NONE,
                "A file with what is sent as Authorization: Bearer; nobody else may read it.",
            ),
            key(
                "ca_file",
                Means("the system's"),
                "Certificate authorities that are trusted instead.",
            ),
            key("rate", Is("60"), RATE),
            FORMAT,
            EVENTS,
            QUEUE,
        ],
    },
    Table {
        name: "sink.NAME",
        about: "With kind = \"telegram\": messages of a Telegram bot.",
        needs: &[("kind", "\"telegram\""), ("chat_id", "\"1\"")],
        keys: &[
            key("kind", Required, "\"telegram\"."),
            ENABLED,
            key("chat_id", Required, "Who gets them."),
            key(
                "token_file",
                Required,
                "A file with the bot's token; nobody else may read it.",
            ),
            key("api", Is("\"https://api.telegram.org\""), "The Bot API."),
            key("rate", Is("20"), RATE),
            EVENTS,
            QUEUE,
        ],
    },
    Table {
        name: "sink.NAME",
        about: "With kind = \"zmq\": a ZeroMQ publisher. It needs the library libzmq, and server_key_file or plain = true.",
        needs: &[
            ("kind", "\"zmq\""),
            ("url", "\"ipc:///run/x\""),
            ("plain", "true"),
        ],
        keys: &[
            key("kind", Required, "\"zmq\"."),
            ENABLED,
            key("url", Required, "The subscriber."),
            key(
                "server_key_file",
                NONE,
                "A file with the subscriber's CURVE public key.",
            ),
            key("plain", Is("false"), "With true, events go in clear text."),
            FORMAT,
            EVENTS,
            QUEUE,
        ],
    },
    Table {
        name: "sink.NAME",
        about: "With kind = \"file\": JSON lines.",
        needs: &[("kind", "\"file\""), ("path", "\"/var/log/x\"")],
        keys: &[
            key("kind", Required, "\"file\"."),
            ENABLED,
            key("path", Required, "Which file."),
            FORMAT,
            EVENTS,
            QUEUE,
        ],
    },
];

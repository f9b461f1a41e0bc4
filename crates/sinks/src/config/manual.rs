//! `[sink.NAME]` in weir.toml(5): a table for each kind.

use weir_config::manual::{
    Case, ENABLED, Key, NONE, Table,
    Usual::{By, Is, Means, Required},
    key,
};

const EVENTS_ABOUT: &str = "The events that the sink gets.";
const USUAL_EVENTS: &str = "[\"ban\", \"unban\", \"error\", \"start\", \"stop\"]";
/// The key `events` of a sink without a choice of formats.
const EVENTS_OF_ONE_FORMAT: Key = key("events", Is(USUAL_EVENTS), EVENTS_ABOUT);
const EVENTS: Key = key(
    "events",
    By(&[
        Case {
            value: USUAL_EVENTS,
            when: "",
            with: &[],
            without: &[],
        },
        Case {
            // All that the format has.
            value: "[\"ban\", \"unban\", \"drop\", \"start\", \"stop\"]",
            when: "with format = \"ipt_geofence\"",
            with: &[("format", "\"ipt_geofence\"")],
            without: &[],
        },
    ]),
    EVENTS_ABOUT,
);
const FORMAT: Key = key("format", Is("\"weir\""), "How an event is written.");
const QUEUE: Key = key(
    "queue",
    Is("4096"),
    "How many events wait for a slow receiver; when there are more, the oldest are dropped and counted, and an event says how many.",
);
const RATE: &str = "How many events are sent in a minute; of the rest only their number is sent.";

/// One for each kind of sink.
pub const MANUAL: &[Table] = &[
    Table {
        name: "sink.NAME",
        about: "With kind = \"webhook\": HTTP POST of each event.",
        needs: &[("kind", "\"webhook\""), ("url", "\"https://localhost/\"")],
        keys: &[
            key("kind", Required, "The kind of sink."),
            ENABLED,
            key("url", Required, "The URL to which events are posted."),
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
            key("kind", Required, "The kind of sink."),
            ENABLED,
            key(
                "chat_id",
                Required,
                "The chat or channel that gets the messages.",
            ),
            key(
                "token_file",
                Required,
                "A file with the bot's token; nobody else may read it.",
            ),
            key(
                "api",
                Is("\"https://api.telegram.org\""),
                "The URL of the Bot API.",
            ),
            key("rate", Is("20"), RATE),
            EVENTS_OF_ONE_FORMAT,
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
            key("kind", Required, "The kind of sink."),
            ENABLED,
            key(
                "url",
                Required,
                "The endpoint at which the subscriber listens.",
            ),
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
            key("kind", Required, "The kind of sink."),
            ENABLED,
            key("path", Required, "The file to which events are appended."),
            FORMAT,
            EVENTS,
            QUEUE,
        ],
    },
];

//! What programs in Python that tests talk to have in common.

/// `bind(socket, port)`: waits, for half a minute, until nobody has a socket at the port that was
/// closed. Whoever reads the host's open files, as weir and tests beside this one do, holds each
/// for as long as it waits for a processor.
pub const BIND: &str = "
import errno, time
def bind(s, port):
    for _ in range(6000):
        try: return s.bind(('', port))
        except OSError as e:
            if e.errno != errno.EADDRINUSE: raise
        time.sleep(0.005)
    raise SystemExit('the port stays in use')
";

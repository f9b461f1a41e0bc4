//! Does a real live? What its checks say, counted: one of them alone decides nothing once
//! it is known.

/// The health of a real, by its checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    /// No check has ended yet: the first one decides.
    Unknown,
    /// The real answers its checks.
    Up,
    /// The real fails its checks.
    Down,
}

/// The health of a real, with the checks that contradict it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Health {
    pub(super) life: Life,
    /// Checks in a row that said otherwise.
    against: u32,
    /// The real has flows from before its first check.
    had_flows: bool,
}

impl Health {
    pub(super) const UNKNOWN: Self = Self {
        life: Life::Unknown,
        against: 0,
        had_flows: false,
    };

    /// No check has ended yet of a real that has flows: it took them under an earlier
    /// daemon, or while another check called it up. A check that is slow is no reason to
    /// break them.
    pub(super) const UNKNOWN_WITH_FLOWS: Self = Self {
        had_flows: true,
        ..Self::UNKNOWN
    };

    /// Whether the real may have flows: it answers its checks, or had flows before and no
    /// check has said anything yet.
    pub(super) fn may_have_flows(&self) -> bool {
        match self.life {
            Life::Up => true,
            Life::Unknown => self.had_flows,
            Life::Down => false,
        }
    }

    /// Counts one more check; true: the real's health has changed by it.
    pub(super) fn note(&mut self, lives: bool, rise: u32, fall: u32) -> bool {
        let said = if lives { Life::Up } else { Life::Down };
        let needed = match self.life {
            Life::Unknown => 1,
            life if life == said => {
                self.against = 0;
                return false;
            }
            Life::Down => rise,
            Life::Up => fall,
        };
        self.against += 1;
        if self.against < needed {
            return false;
        }
        *self = Self {
            life: said,
            ..Self::UNKNOWN
        };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_falls_and_rises_after_as_many_checks_as_configured() {
        let mut health = Health::UNKNOWN;
        assert!(health.note(true, 2, 3));
        let checks = [
            (false, Life::Up),
            (false, Life::Up),
            (true, Life::Up),
            (false, Life::Up),
            (false, Life::Up),
            (false, Life::Down),
            (true, Life::Down),
            (false, Life::Down),
            (true, Life::Down),
            (true, Life::Up),
        ];
        for (n, (lives, then)) in checks.into_iter().enumerate() {
            let before = health.life;
            assert_eq!(health.note(lives, 2, 3), before != then, "{n}");
            assert_eq!(health.life, then, "{n}");
        }
        let mut health = Health::UNKNOWN;
        assert!(health.note(false, 2, 3) && health.life == Life::Down);
    }

    #[test]
    fn a_real_that_had_flows_keeps_them_until_its_first_check_has_ended() {
        assert!(!Health::UNKNOWN.may_have_flows());
        for lives in [true, false] {
            let mut health = Health::UNKNOWN_WITH_FLOWS;
            assert!(health.may_have_flows() && health.life == Life::Unknown);
            assert!(health.note(lives, 2, 3));
            assert_eq!(health.may_have_flows(), lives);
        }
    }
}

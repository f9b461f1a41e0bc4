//! Things by place, with how often each place was given out.

use crate::poller::TURNS;

/// A table of things that come and go.
pub(crate) struct Table<T> {
    all: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Table<T> {
    /// Place and turn of the thing that is inserted next.
    pub fn next(&self) -> (u32, u32) {
        match self.free.last() {
            Some(place) => (*place, self.all[*place as usize].0),
            None => (self.all.len() as u32, 0),
        }
    }

    pub fn insert(&mut self, thing: T) {
        match self.free.pop() {
            Some(place) => self.all[place as usize].1 = Some(thing),
            None => self.all.push((0, Some(thing))),
        }
    }

    /// The entry at this place, if it is the one of this turn.
    pub fn get(&mut self, place: u32, turn: u32) -> Option<&mut T> {
        let (now, thing) = self.all.get_mut(place as usize)?;
        thing.as_mut().filter(|_| *now == turn)
    }

    pub fn remove(&mut self, place: u32) -> Option<T> {
        let (turn, thing) = self.all.get_mut(place as usize)?;
        let gone = thing.take()?;
        *turn = (*turn + 1) % TURNS;
        self.free.push(place);
        Some(gone)
    }

    /// The places and turns of entries for which `is_such` holds.
    pub fn places(&self, is_such: impl Fn(&T) -> bool) -> Vec<(u32, u32)> {
        let all = (0..).zip(&self.all);
        let such = all.filter(|(_, (_, thing))| thing.as_ref().is_some_and(&is_such));
        such.map(|(place, (turn, _))| (place, *turn)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_to_a_place_is_not_taken_for_who_was_there() {
        let mut table = Table::default();
        let first = table.next();
        table.insert('a');
        let second = table.next();
        table.insert('b');
        assert_eq!(table.get(first.0, first.1), Some(&mut 'a'));
        assert_eq!(table.remove(first.0), Some('a'));
        assert_eq!(table.get(first.0, first.1), None);
        assert_eq!(table.remove(first.0), None);
        let again = table.next();
        table.insert('c');
        assert_eq!((again.0, table.get(first.0, first.1)), (first.0, None));
        assert_eq!(table.get(again.0, again.1), Some(&mut 'c'));
        assert_eq!(table.places(|thing| *thing == 'b'), [second]);
    }
}

"""What was used last, within a bound: the one cache of the project."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable


class Recent[Key: Hashable, Value]:
    """Keeps the values used last while their sizes add up to at most `most`. Safe to use from threads."""

    def __init__(self, most: int, size: Callable[[Value], int] = lambda value: 1):
        self._most, self._size, self._held = most, size, 0
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Key) -> Value | None:
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def get_or(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of a key; one that is not kept is made, and kept. Two threads may make the same."""
        found = self.get(key)
        if found is None:
            found = make()
            self.put(key, found)
        return found

    def put(self, key: Key, value: Value) -> None:
        """Keep a value; one that is larger than the bound by itself is not kept."""
        size = self._size(value)
        if size > self._most:
            return
        with self._lock:
            if key in self._values:
                self._held -= self._size(self._values.pop(key))
            self._values[key] = value
            self._held += size
            while self._held > self._most:
                self._held -= self._size(self._values.popitem(last=False)[1])

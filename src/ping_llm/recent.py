"""A bounded cache of the most recently used values, the only cache class of this project."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable


class Recent[Key: Hashable, Value]:
    """Keep the most recently used values, up to a total size of `most`. Safe to use from threads."""

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
        """Return the value of a key; a missing one is made and kept. Two threads may make the same value."""
        found = self.get(key)
        if found is None:
            found = make()
            self.put(key, found)
        return found

    def put(self, key: Key, value: Value) -> None:
        """Store a value, unless it alone is larger than the bound."""
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

"""The only thread that calls the model, and its bounded queue.

Waiting questions are answered in batches of at most `_BATCH`. Requests take turns, `_TURN` questions each, so
that a single question does not wait for a list of a thousand. An answer does not depend on the rest of its
batch: the network reads one prompt at a time, and each question uses its own history.
"""

import asyncio
import atexit
import gc
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ping_llm.answer.answering import STACK
from ping_llm.errors import PingError
from ping_llm.recent import Recent
from ping_llm.serve.metrics import Metrics
from ping_llm.serve.refusals import Refused

if TYPE_CHECKING:
    from ping_llm.answer.answering import RttAnswer
    from ping_llm.answer.context import Question
    from ping_llm.answer.model import Model

#: Questions per batch, and per turn of a request, at most. The network reads one prompt at a time, so larger
#: batches gain little and make single questions wait.
_BATCH = 32
_TURN = 8
#: Number of answers cached for repeated questions, 70 kB each.
_KEPT = 1000


class _Work:
    """Questions of one request, or one function of the model to call."""

    def __init__(self, questions: Sequence["Question"], each: Callable[[int, "RttAnswer"], Any], method: str):
        self.questions, self.each, self.method = questions, each, method
        self.results: list[Any] = [None] * len(questions)
        self.finish: Callable[[list[Any]], Any] = lambda results: results
        self.call: Callable[[Model], Any] | None = None
        #: Number of questions taken from the queue, and of those answered.
        self.taken = self.done = 0
        self.dropped = False
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()

    @property
    def left(self) -> int:
        return 1 if self.call is not None else len(self.questions) - self.taken

    def resolve(self, result: Any, error: BaseException | None = None) -> None:
        def apply() -> None:
            if self.future.done():
                return
            if error is None:
                self.future.set_result(result)
            else:
                self.future.set_exception(error)

        # A closed event loop has no client left.
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(apply)


class ModelThread:
    """Loads and calls a model in its own thread; JAX is called from no other thread.

    Args:
      load: loads the model; called again by `reload`.
      capacity: largest number of waiting questions.
      wait_ms: time that the first question waits for others.
      longest_wait: expected wait, s, beyond which a question is refused.
    """

    def __init__(
        self,
        load: Callable[[], "Model"],
        capacity: int,
        wait_ms: float,
        metrics: Metrics,
        longest_wait: float,
    ):
        self._load, self._capacity, self._wait, self._metrics = load, capacity, wait_ms / 1000, metrics
        self._longest_wait = longest_wait
        self._kept: Recent[tuple[Any, ...], RttAnswer] = Recent(_KEPT)
        self._queue: deque[_Work] = deque()
        self._changed = threading.Condition()
        self._waiting = self._in_progress = 0
        self._closed = self._reload = False
        self._seconds_each = 0.05
        self._model: Model | None = None
        self._loaded = threading.Event()
        self._failure: BaseException | None = None
        self._warm = self._first_failed = False
        #: Called with a sentence after each reload, and if the first question fails.
        self.report: Callable[[str], None] = lambda sentence: None
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)

    def start(self) -> "Model":
        """Start the thread; return the loaded model, or raise the error of loading."""
        self._thread.start()
        self._loaded.wait()
        if self._failure is not None:
            raise self._failure
        assert self._model is not None
        return self._model

    @property
    def model(self) -> "Model":
        """The model, for reading its metadata; only the thread asks it questions."""
        assert self._model is not None
        return self._model

    @property
    def ready(self) -> bool:
        """Whether a question was answered, so that everything is compiled."""
        return self._warm and self._thread.is_alive()

    @property
    def first_failed(self) -> bool:
        """Whether the question asked after loading failed, and no other was answered since."""
        return self._first_failed and not self._warm

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def waiting(self) -> int:
        return self._waiting

    def reload(self) -> None:
        """Load the run again after the current batch; the new model answers the waiting questions."""
        with self._changed:
            self._reload = True
            self._changed.notify()

    def close(self) -> None:
        """End the thread; refuse the questions that still wait."""
        with self._changed:
            self._closed = True
            left, self._waiting = list(self._queue), 0
            self._queue.clear()
            self._changed.notify()
        for work in left:
            work.resolve(None, Refused(503, "the server is shutting down", retry_after=5))
        # A batch that takes longer ends with the process.
        self._thread.join(timeout=5)

    def ask(
        self,
        questions: Sequence["Question"],
        each: Callable[[int, "RttAnswer"], Any],
        *,
        method: str = STACK,
        finish: Callable[[list[Any]], Any] | None = None,
    ) -> Awaitable[Any]:
        """Return the answers, each converted by `each(index, answer)` in the thread when it is available.

        Raises:
          Refused: too many questions wait (status 503).
        """
        work = _Work(questions, each, method)
        if finish is not None:
            work.finish = finish
        return self._put(work)

    def call(self, function: Callable[["Model"], Any]) -> Awaitable[Any]:
        """Return the result of a function of the model, called in the thread."""
        work = _Work((), lambda index, answer: answer, STACK)
        work.call = function
        return self._put(work)

    def _put(self, work: _Work) -> Awaitable[Any]:
        with self._changed:
            if self._closed:
                raise Refused(503, "the server is shutting down", retry_after=5)
            delay = (self._waiting + self._in_progress) * self._seconds_each
            too_many = self._waiting + work.left > self._capacity
            if self._waiting and (too_many or delay > self._longest_wait):
                self._metrics.rejected("queue full")
                raise Refused(
                    503,
                    f"{self._waiting:,} questions wait, about {delay:.0f} s: ask again later",
                    retry_after=min(max(round(delay), 1), 60),
                )
            self._waiting += work.left
            self._queue.append(work)
            self._changed.notify()
        return self._answered(work)

    async def _answered(self, work: _Work) -> Any:
        try:
            return await work.future
        finally:
            # The client disconnected, or another part of its request failed: the rest is not needed.
            if not work.future.done() or work.future.cancelled():
                self._drop(work)

    def _drop(self, work: _Work) -> None:
        with self._changed:
            work.dropped = True
            if work in self._queue:
                self._queue.remove(work)
                self._waiting -= work.left

    def _run(self) -> None:
        try:
            self._model = self._load()
        except BaseException as error:
            self._failure = error
            return
        finally:
            self._loaded.set()
        self._metrics.model_loaded(True)
        self._warm_up()
        while True:
            with self._changed:
                while not (self._queue or self._closed or self._reload):
                    self._changed.wait()
                if self._closed:
                    return
                again, self._reload = self._reload, False
                if not again and self._waiting < _BATCH and self._wait:
                    self._changed.wait(self._wait)
                batch = [] if again else self._take()
                self._in_progress = sum(high - low for _, low, high in batch)
            if again:
                self._load_again()
            elif batch:
                try:
                    self._answer(batch)
                except Exception as error:  # the thread must outlive any batch
                    for work, _, _ in batch:
                        self._fail(work, error)
                self._in_progress = 0

    def _warm_up(self) -> None:
        from ping_llm.answer.context import Question
        from ping_llm.measurements.schema import Measurement

        # Addresses for documentation, without measurements. Without data, the packaged model needs a context.
        src, dst = "192.0.2.1", "198.51.100.7"
        try:
            known = [Measurement(datetime.now(UTC), src, dst, 20.0)] if self.model.data is None else None
            self.model.rtt_many([Question.of(src, dst, None, known)])
            answered = True
        except Exception as error:
            answered = False
            self.report(f"the first question failed: {error}")
        _settle_objects()
        self._warm, self._first_failed = answered, not answered

    def _load_again(self) -> None:
        try:
            made = self._load()
        except Exception as error:
            self._metrics.model_loaded(False)
            self.report(f"the run was not loaded again, the old model stays: {error}")
            return
        self._model, self._kept = made, Recent(_KEPT)
        if self._warm:
            _settle_objects()
        else:
            self._warm_up()
        self._metrics.model_loaded(True)
        self.report("the run was loaded again")

    def _take(self) -> list[tuple[_Work, int, int]]:
        """Return (work, first, end) of the next questions; a call is taken alone."""
        batch: list[tuple[_Work, int, int]] = []
        room = _BATCH
        while self._queue and room:
            work = self._queue[0]
            if work.call is not None and batch:
                break
            self._queue.popleft()
            if work.call is not None:
                self._waiting -= 1
                return [(work, 0, 0)]
            count = min(_TURN, work.left, room)
            uneven = [at for at in range(count) if work.questions[work.taken + at].is_uneven]
            if uneven and uneven[0] == 0:
                # The mixture of up to 256 prefixes takes as long as a batch of other questions.
                if batch:
                    self._queue.appendleft(work)
                    break
                count = room = 1
            elif uneven:
                count = uneven[0]
            batch.append((work, work.taken, work.taken + count))
            work.taken += count
            self._waiting -= count
            room -= count
            if work.left:
                self._queue.append(work)
            elif not work.questions:
                work.resolve(work.finish([]))
        return batch

    def _answer(self, batch: list[tuple[_Work, int, int]]) -> None:
        start = time.perf_counter()
        first = batch[0][0]
        if first.call is not None:
            if not first.dropped:
                self._settle(first, lambda: first.call(self.model))  # type: ignore[misc]
            return
        asked = [(work, index) for work, low, high in batch for index in range(low, high)]
        asked = [(work, index) for work, index in asked if not work.dropped]
        self._metrics.batch(len(asked))
        for method in dict.fromkeys(work.method for work, _ in asked):
            same = [(work, index) for work, index in asked if work.method == method]
            self._ask(same, method)
        if asked:
            each = (time.perf_counter() - start) / len(asked)
            self._seconds_each += 0.2 * (each - self._seconds_each)

    def _ask(self, group: list[tuple[_Work, int]], method: str) -> None:
        """Ask questions together; if that fails, one by one, so that only invalid ones fail."""
        try:
            answers = self._answers([work.questions[index] for work, index in group], method)
        except Exception as error:
            if len(group) > 1:
                for one in group:
                    if not one[0].dropped:
                        self._ask([one], method)
                return
            work, index = group[0]
            self._fail(work, _about(error, f"[{index}]" if len(work.questions) > 1 else ""))
            return
        for (work, index), answer in zip(group, answers, strict=True):
            try:
                work.results[index] = work.each(index, answer)
            except Exception as error:
                self._fail(work, _about(error, ""))
                continue
            work.done += 1
            if work.done == len(work.questions):
                self._settle(work, lambda work=work: work.finish(work.results))  # type: ignore[misc]

    def _answers(self, questions: Sequence["Question"], method: str) -> list["RttAnswer"]:
        """Return the answers of `rtt_many`; those about the server's data are cached."""
        # Not cached with a context of the request: it would have to be compared measurement by measurement.
        keys = [
            None if q.context is not None else (method, q.src, q.dst, q.time, q.conditions) for q in questions
        ]
        known = [None if key is None else self._kept.get(key) for key in keys]
        fresh = [index for index, answer in enumerate(known) if answer is None]
        given = [index for index in fresh if keys[index] is None]
        others = [index for index in fresh if keys[index] is not None]
        for model, chosen in ((self.model.of_contexts, given), (self.model, others)):
            if not chosen:
                continue
            made = model.rtt_many([questions[index] for index in chosen], method=method)
            self._warm = True
            for index, answer in zip(chosen, made, strict=True):
                known[index], key = answer, keys[index]
                if key is not None:
                    self._kept.put(key, answer)
        return [answer for answer in known if answer is not None]

    def _fail(self, work: _Work, error: BaseException) -> None:
        self._drop(work)
        work.resolve(None, error)

    def _settle(self, work: _Work, make: Callable[[], Any]) -> None:
        try:
            result = make()
        except Exception as error:
            work.resolve(None, _about(error, ""))
        else:
            work.resolve(result)


def _settle_objects() -> None:
    """Exclude the loaded objects from garbage collections, which stop all threads.

    JAX and the model have 400,000 objects: a full collection took 0.2 to 1.7 s on a busy machine, and delayed
    every question that arrived meanwhile.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    # Undone at exit; otherwise DuckDB's binding reports all of them as leaks.
    atexit.register(gc.unfreeze)


def _about(error: Exception, path: str) -> Exception:
    """Return the refusal for an error that a client may see; other errors are failures of the server."""
    if isinstance(error, Refused):
        return error.below(path)
    return Refused(422, str(error), path) if isinstance(error, PingError) else error

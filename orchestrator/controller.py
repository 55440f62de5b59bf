"""Runs the state machine: the rendezvous and the backend bring events, their actions are carried out, a timer ticks."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from typing import Protocol

from orchestrator import state as machine
from orchestrator.backends.base import Backend, Meeting
from orchestrator.cluster import Cluster
from orchestrator.events import (
    Action,
    BeginAll,
    Disconnected,
    Event,
    Finish,
    Gone,
    Joined,
    Launch,
    Leaves,
    Paused,
    Remove,
    Said,
    Send,
    StopAsked,
    Tell,
    Tick,
    Waits,
)
from orchestrator.group import Before, Phase, Policy, Result, State
from orchestrator.rendezvous import Rendezvous
from worker_image import protocol

BEAT = 1.0  # seconds between two messages of an agent
TICK = 0.1  # seconds
PAUSE = 2.0  # seconds without a tick that mean that this process itself stood still
PATIENCE = 15.0  # seconds for dismissed agents to clean up


class Observer(Protocol):
    """Who is told what happens: the terminal, the run folder."""

    def told(self, text: str) -> None:
        """One line for the user."""

    def began(self, attempt: int) -> None:
        """An attempt begins on every worker."""

    def opened(self, worker: int, log: str) -> None:
        """A worker's output goes to this file of its folder from now on."""

    def progressed(self, state: State) -> None:
        """A worker reported."""

    def changed(self, state: State) -> None:
        """More than a report: something was decided."""

    async def concluded(self, state: State) -> None:
        """The job has a result; nobody is let go before this returns."""


class Controller:
    """One job from launch to result. Time and randomness are arguments, so that tests choose them.

    before: what is left of the controllers before this one, where agents may be running already.
    """

    def __init__(
        self,
        policy: Policy,
        backend: Backend,
        observer: Observer,
        clock: Callable[[], float] = time.monotonic,
        secret: bytes | None = None,
        before: Before | None = None,
    ) -> None:
        self._backend = backend
        self._observer = observer
        self._clock = clock
        self._secret = secret or os.urandom(protocol.SECRET_BYTES)
        self._rendezvous = Rendezvous(self._secret, BEAT, policy.workers, self)
        self._state, self._pending = machine.resume(policy, clock(), before) if before else machine.begin(policy, clock())
        self._told: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._result: asyncio.Future[Result | None] = asyncio.get_running_loop().create_future()
        self._urgent = asyncio.Event()

    @property
    def state(self) -> State:
        """The group as it is now."""
        return self._state

    async def run(self, host: str, port: int = 0) -> Result | None:
        """Run the job, with the rendezvous on this address and port (0: any free one).

        When it returns, nothing of the job is left; None if it was told to abandon the job, which then goes on without it.
        """
        await self._rendezvous.start(host, port)
        ticking = asyncio.ensure_future(self._tick())
        abandoned = False
        try:
            self._carry_out(self._pending)
            result = await self._result
            abandoned = result is None
            return result
        finally:
            ticking.cancel()
            await (self._rendezvous.close() if abandoned else self._close())

    def abandon(self) -> None:
        """Leave the job to the next controller: agents and programs go on."""
        if not self._result.done():
            self._result.set_result(None)

    def stop(self, number: int) -> None:
        """A signal asks for the end; a second one for the end at once."""
        if self._state.stopping or self._result.done():
            self._urgent.set()
        self._handle(StopAsked(self._clock(), number))

    def stop_once(self, number: int) -> None:
        """The same from someone who may say it twice and means it once."""
        if not self._state.stopping and not self._result.done():
            self.stop(number)

    # ---- the rendezvous' listener ----

    def refusal(self, worker: int, incarnation: int) -> protocol.Refused | None:
        """See rendezvous.Listener."""
        return machine.refusal(self._state, worker, incarnation)

    def joined(self, worker: int, attempt: int, holds: str) -> None:
        """See rendezvous.Listener."""
        self._handle(Joined(self._clock(), worker, attempt, holds))

    def said(self, worker: int, message: protocol.Message) -> None:
        """See rendezvous.Listener."""
        if isinstance(message, protocol.Opened):
            self._observer.opened(worker, message.log)
        self._handle(Said(self._clock(), worker, message))
        if isinstance(message, protocol.Beat):
            self._observer.progressed(self._state)

    def disconnected(self, worker: int, incarnation: int) -> None:
        """See rendezvous.Listener."""
        self._handle(Disconnected(self._clock(), worker, incarnation))

    # ---- the backend's watcher ----

    def gone(self, worker: int, incarnation: int, why: str, kind: str = "lost") -> None:
        """See backends.base.Watcher."""
        self._handle(Gone(self._clock(), worker, incarnation, why, kind))

    def leaves(self, worker: int, incarnation: int, why: str) -> None:
        """See backends.base.Watcher."""
        self._handle(Leaves(self._clock(), worker, incarnation, why))

    def waits(self, worker: int, incarnation: int, why: str) -> None:
        """See backends.base.Watcher."""
        self._handle(Waits(self._clock(), worker, incarnation, why))

    # ---- events in, actions out ----

    def _handle(self, event: Event) -> None:
        phase = self._state.phase
        self._state, actions = machine.step(self._state, event)
        if self._state.phase is Phase.OVER is not phase:
            self._start(self._conclude(actions))
        else:
            self._carry_out(actions)
        if actions or self._state.phase is not phase:
            self._observer.changed(self._state)

    async def _conclude(self, actions: list[Action]) -> None:
        """A result that is known before anyone goes can't be lost with this controller."""
        await self._observer.concluded(self._state)
        self._carry_out(actions)

    def _carry_out(self, actions: list[Action]) -> None:
        meeting = Meeting(self._rendezvous.address, self._secret)
        for action in actions:
            match action:
                case Send(worker, message):
                    self._rendezvous.send([worker], message)
                case BeginAll(attempt, addresses):
                    everyone = range(len(addresses))
                    self._rendezvous.send(everyone, protocol.Begin(attempt, Cluster(addresses).spec()))
                    self._observer.began(attempt)
                case Launch(worker, incarnation):
                    self._start(self._backend.launch(worker, incarnation, meeting, self))
                case Remove(worker, incarnation):
                    self._start(self._backend.remove(worker, incarnation))
                case Tell(text, topic):
                    if not topic or topic not in self._told:
                        self._told.add(topic)
                        self._observer.told(text)
                case Finish(result):
                    if not self._result.done():
                        self._result.set_result(result)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error and not self._result.done():
            self._result.set_exception(error)  # a bug of ours must not leave anyone waiting

    async def _tick(self) -> None:
        last = self._clock()
        while True:
            await asyncio.sleep(TICK)
            now = self._clock()
            if now - last > PAUSE:
                self._handle(Paused(now, now - last))
            self._handle(Tick(now))
            last = now

    async def _close(self) -> None:
        """Let the agents clean up, unless a second signal says that there is no time."""
        closing = asyncio.ensure_future(self._backend.close(PATIENCE))
        urgent = asyncio.ensure_future(self._urgent.wait())
        await asyncio.wait({closing, urgent}, return_when=asyncio.FIRST_COMPLETED)
        if not closing.done():
            closing.cancel()
            await self._backend.close(0.0)
        urgent.cancel()
        await self._rendezvous.close()

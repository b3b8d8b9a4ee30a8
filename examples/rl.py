"""Learns to balance a pole on a cart, with one agent and many observers.

    telegrad run --nproc-per-node 3 examples/rl.py

Rank 0 is the agent: it owns the policy. Every other rank runs several observers, each with a cart
of its own (CartPole-v1 of gymnasium; Barto, Sutton and Anderson, 1983). An observer sends what it
sees and gets what to do. The agent answers all of them with one pass through the network:

    observer ─── state ──┐            ┌─► action, step the cart
    observer ─── state ──┼─► policy ──┼─► action, step the cart       one round; 64 of them,
    observer ─── state ──┘            └─► action, step the cart       then the agent learns

Asking is an `async_execution` function: no thread of the agent waits while a round fills. Observers
are coroutines, so that one worker runs as many as it likes. Rounds always hold all observers, in
the same order: the numbers do not depend on who is fast. A worker that is lost takes its observers
with it, and rounds go on without them.

The agent learns by proximal policy optimization (Schulman and others, 2017), until the mean reward
of the last 100 episodes is 195. The reward of every episode is drawn in a PNG.
"""

from __future__ import annotations

import argparse
import math
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias, final

import gymnasium
import numpy as np
import numpy.typing as npt

import telegrad as tg
from telegrad import nn, optim, rpc
from telegrad.errors import WorkerLostError
from telegrad.nn import functional

Floats: TypeAlias = npt.NDArray[np.float32]
Bools: TypeAlias = npt.NDArray[np.bool_]
Played: TypeAlias = tuple[Floats, Bools, Floats]
"""Of some steps: (steps,) rewards, (steps,) whether the episode ended, and the (4,) state now."""

GOAL = 195.0  # the mean reward of
EPISODES = 100  # that many
MOST_STEPS = 200_000

OBSERVERS = 4  # on each worker
STEPS = 64  # of each observer, between two times that the agent learns
LINE_EVERY = 5  # times

HIDDEN = 64
LEARNING_RATE = 0.005
DISCOUNT = 0.98
TRACE = 0.95  # how much later rewards count in an advantage; lambda in the paper
CLIP = 0.2  # how far the probability of an action may go at once
EPOCHS = 4
BATCH = 128


@final
class Policy(nn.Module):
    """What to do, and what is to be expected, of (..., 4) states.

    Args:
        rng: Where the parameters are drawn from.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__()
        self.actor, self.critic = (
            nn.Sequential(
                nn.Linear(4, HIDDEN, rng=rng), nn.Tanh(), nn.Linear(HIDDEN, outputs, rng=rng)
            )
            for outputs in (2, 1)
        )

    def log_probabilities(self, states: Floats) -> tg.Tensor:
        """Returns (..., 2) logarithms of how likely to push left and right."""
        return functional.log_softmax(self.actor(tg.as_tensor(states)), -1)

    def values(self, states: Floats) -> tg.Tensor:
        """Returns (...) rewards that are still to be expected, discounted."""
        expected: tg.Tensor = self.critic(tg.as_tensor(states))[..., 0]
        return expected


class Decision(NamedTuple):
    """What an observer saw, what it was told, and the logarithm of how likely that was."""

    state: Floats
    action: int
    log_probability: float


@final
class Agent:
    """Tells observers what to do, and learns from what they lived through.

    Args:
        observers: The number of each.
        seed: Of all that is random here.
    """

    def __init__(self, observers: Sequence[int], seed: int = 0) -> None:
        self.rounds = 0
        self._rng = np.random.default_rng(seed)
        self.policy = Policy(self._rng)
        self._optimizer = optim.Adam(self.policy.parameters(), lr=LEARNING_RATE)
        self._memory: dict[int, list[Decision]] = defaultdict(list)
        self._lock = threading.Lock()  # guards the three below
        self._observers = set(observers)
        self._asked: dict[int, Floats] = {}
        self._answer: rpc.Future[dict[int, int]] = rpc.Future()

    @rpc.functions.async_execution
    def act(self, observer: int, state: Floats) -> rpc.Future[int]:
        """Returns 0 to push left or 1 to push right, once all observers have asked."""
        with self._lock:
            answer = self._answer
            self._asked[observer] = state
            full = self._take_round()
        self._finish(full, answer)
        return answer.then(lambda actions: actions.value()[observer])

    def leave(self, observer: int) -> None:
        """Hears that an observer will not ask any more; the round may be full without it."""
        with self._lock:
            answer = self._answer
            self._observers.discard(observer)
            full = self._take_round()
        self._finish(full, answer)

    def _take_round(self) -> dict[int, Floats]:
        """Returns the states of a full round by observer, and begins the next one; else nothing."""
        if self._observers - self._asked.keys():
            return {}
        full = {observer: self._asked[observer] for observer in sorted(self._asked)}
        self._asked = {}
        self._answer = rpc.Future()
        return full

    def _finish(self, full: dict[int, Floats], answer: rpc.Future[dict[int, int]]) -> None:
        if not full:
            return
        try:
            answer.set_result(self._decide(full))
        except Exception as error:  # or the observers would wait for an answer that never comes
            answer.set_exception(error)

    def _decide(self, states: dict[int, Floats]) -> dict[int, int]:
        """Draws an action for each observer, and remembers it."""
        with tg.no_grad():
            likely = self.policy.log_probabilities(np.stack(list(states.values()))).numpy()
        actions = (self._rng.random(len(states)) < np.exp(likely[:, 1])).astype(int)
        for (observer, state), action, row in zip(states.items(), actions, likely, strict=True):
            self._memory[observer].append(Decision(state, int(action), float(row[action])))
        self.rounds += 1
        return dict(zip(states, map(int, actions), strict=True))

    def learn(self, played: Mapping[int, Played]) -> None:
        """Improves the policy with the last steps of some observers, all equally many."""
        decisions = [self._memory[observer] for observer in played]
        states = np.array([[decision.state for decision in each] for each in decisions])
        actions = np.array([[decision.action for decision in each] for each in decisions])
        before = np.array([[decision.log_probability for decision in each] for each in decisions])
        self._memory.clear()  # of lost observers too

        rewards, ended, now = (np.stack(parts) for parts in zip(*played.values(), strict=True))
        with tg.no_grad():
            values = self.policy.values(np.concatenate([states, now[:, None]], axis=1)).numpy()
        better = advantages(rewards, ended, values)
        returns = better + values[:, :-1]

        samples = [
            states.reshape(-1, 4), actions.ravel(), before.ravel().astype(np.float32),
            better.ravel(), returns.ravel(),
        ]  # fmt: skip
        for _ in range(EPOCHS):
            order = self._rng.permutation(actions.size)
            for start in range(0, len(order), BATCH):
                self._step(*(sample[order[start : start + BATCH]] for sample in samples))

    def _step(
        self,
        states: Floats,
        actions: npt.NDArray[np.int64],
        before: Floats,
        better: Floats,
        returns: Floats,
    ) -> None:
        """Makes actions that were better than expected more likely, but not by far at once."""
        better = (better - better.mean()) / (better.std() + 1e-8)
        likely = self.policy.log_probabilities(states)[np.arange(len(actions)), actions]
        ratio = np.exp(likely - before)
        gain = np.minimum(ratio * better, np.clip(ratio, 1 - CLIP, 1 + CLIP) * better).mean()
        loss = functional.mse_loss(self.policy.values(states), returns) / 2 - gain
        self._optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.policy.parameters(), 0.5)
        self._optimizer.step()


def advantages(rewards: Floats, ended: Bools, values: Floats) -> Floats:
    """Returns how much better each step went than expected (Schulman and others, 2016).

    Args:
        rewards: Of each step; shape (observers, steps).
        ended: Whether the episode ended with the step; the same shape.
        values: What was expected before each step and after the last; shape (observers, steps + 1).
    """
    result = np.zeros_like(rewards)
    later = np.zeros(len(rewards), np.float32)
    for t in reversed(range(rewards.shape[1])):
        goes_on = 1 - ended[:, t].astype(np.float32)
        surprise = rewards[:, t] + DISCOUNT * goes_on * values[:, t + 1] - values[:, t]
        later = surprise + DISCOUNT * TRACE * goes_on * later
        result[:, t] = later
    return result


@final
class Observer:
    """Has a cart with a pole, and pushes it as the agent says.

    Args:
        agent: Whom to ask.
        number: Which observer it is; the seed of its cart too.
    """

    def __init__(self, agent: rpc.RRef[Agent], number: int) -> None:
        self.agent = agent
        self.number = number
        self.cart = gymnasium.make("CartPole-v1")
        self.state: Floats = self.cart.reset(seed=number)[0]

    async def play(self, steps: int) -> Played:
        """Makes some steps and returns what came of them; an episode goes on in the next call."""
        rewards, ended = np.zeros(steps, np.float32), np.zeros(steps, bool)
        for t in range(steps):
            action = await self.agent.rpc_async().act(self.number, self.state)
            self.state, rewards[t], fallen, too_long, _ = self.cart.step(action)
            ended[t] = fallen or too_long
            if ended[t]:
                self.state = self.cart.reset()[0]
        return rewards, ended, self.state


class Episodes:
    """The rewards of all episodes that have ended, in the order of their last steps."""

    def __init__(self) -> None:
        self.rewards: list[float] = []
        self.steps: list[int] = []  # of all observers together, when the episode had ended
        self.steps_now = 0
        self._open: dict[int, float] = defaultdict(float)

    def add(self, played: Mapping[int, Played]) -> None:
        """Takes the next steps of all observers."""
        for t in range(STEPS):
            self.steps_now += len(played)
            for observer, (rewards, ended, _) in played.items():
                self._open[observer] += float(rewards[t])
                if ended[t]:
                    self.rewards.append(self._open.pop(observer))
                    self.steps.append(self.steps_now)

    def mean(self) -> float:
        """Returns the mean reward of the last 100 episodes, or of all where there are fewer."""
        return float(np.mean(self.rewards[-EPISODES:])) if self.rewards else 0.0

    def solved(self) -> bool:
        """Returns whether the mean of the last 100 episodes is what was asked for."""
        return len(self.rewards) >= EPISODES and self.mean() >= GOAL

    def __str__(self) -> str:
        return (
            f"{self.steps_now:7,} steps  {len(self.rewards):4} episodes  "
            f"mean reward of the last {EPISODES}: {self.mean():5.1f}"
        )


@final
class Field:
    """The agent and all observers, as rank 0 sees them."""

    def __init__(self, workers: Sequence[rpc.WorkerInfo]) -> None:
        homes = dict(enumerate(worker for worker in workers for _ in range(OBSERVERS)))
        self.agent = Agent(list(homes))
        self.lost: set[str] = set()
        reference = rpc.RRef(self.agent)
        self._observers = {
            number: rpc.remote(worker, Observer, (reference, number))
            for number, worker in homes.items()
        }

    def play(self) -> dict[int, Played]:
        """Has all observers make their steps at once, and returns those of the living."""
        playing = [
            observer.rpc_async(timeout=math.inf).play(STEPS).then(partial(self._ended, number))
            for number, observer in self._observers.items()
        ]
        return {
            number: played
            for number, played in zip(list(self._observers), rpc.wait_all(playing), strict=True)
            if played is not None
        }

    def _ended(self, number: int, playing: rpc.Future[Played]) -> Played | None:
        error = playing.exception()
        if error is None:
            return playing.value()
        self.agent.leave(number)  # in any case: the others must not wait for it
        if not isinstance(error, WorkerLostError):
            raise error
        self.lost.add(self._observers[number].owner_name())
        return None

    def forget_the_lost(self) -> None:
        """Asks no more observers of workers that are lost."""
        for number, observer in list(self._observers.items()):
            if observer.owner_name() in self.lost:
                del self._observers[number]


def train() -> Episodes:
    """Plays and learns in turn until the pole stays up, and tells how it goes."""
    workers = [worker for worker in rpc.get_worker_infos() if worker.rank > 0]
    if not workers:
        sys.exit("an agent alone sees nothing; run: telegrad run --nproc-per-node 3 " + __file__)
    print(f"one agent, {len(workers)} workers with {OBSERVERS} observers each", flush=True)
    began = time.monotonic()
    field, episodes, times = Field(workers), Episodes(), 0
    while not episodes.solved() and episodes.steps_now < MOST_STEPS:
        known = set(field.lost)
        played = field.play()
        for worker in sorted(field.lost - known):
            print(f"lost: {worker} with its observers; the others go on", flush=True)
        field.forget_the_lost()
        if not played:
            sys.exit("all observers are lost")
        episodes.add(played)
        field.agent.learn(played)
        times += 1
        if times % LINE_EVERY == 0:
            print(episodes, flush=True)
    seconds = time.monotonic() - began
    print(f"{'solved' if episodes.solved() else 'not solved'}: {str(episodes).strip()}")
    print(f"rounds: {field.agent.rounds:,}   time: {seconds:.1f} s", flush=True)
    return episodes


def draw(episodes: Episodes, path: str) -> None:
    """Draws the reward of each episode, and the mean of the last 100."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - nothing else needs it
    except ModuleNotFoundError:
        print("no curve: pip install matplotlib")
        return
    rewards = episodes.rewards
    means = [np.mean(rewards[max(0, i - EPISODES) : i]) for i in range(1, len(rewards) + 1)]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(episodes.steps, rewards, ".", color="tab:blue", alpha=0.4, label="one episode")
    axes.plot(episodes.steps, means, color="tab:blue", label=f"mean of the last {EPISODES}")
    axes.axhline(GOAL, color="gray", linestyle="--", linewidth=1, label=f"goal: {GOAL:.0f}")
    axes.set(xlabel="steps of all observers", ylabel="reward", title="CartPole-v1", ylim=(0, 510))
    axes.legend(loc="upper left")
    figure.savefig(path, dpi=120)
    print(f"curve: {path}")


def main() -> None:
    """Reads the arguments, and does what an agent does."""
    parser = argparse.ArgumentParser(description="Learns to balance a pole on a cart.")
    parser.add_argument("--curve", default="cartpole.png", help="where to draw the rewards")
    curve = parser.parse_args().curve
    with rpc.init_rpc() as agent:
        if agent.rank == 0:
            episodes = train()
            draw(episodes, curve)
            if not episodes.solved():
                sys.exit(1)


if __name__ == "__main__":
    main()

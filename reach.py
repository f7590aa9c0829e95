"""A point that should go to the origin of a plane, and rollouts in it: stands for your own environment."""

import numpy as np

STEPS = 40


def move(states, actions):
    """Advance positions and velocities (N, 4) by accelerations (N, 2) in [-1, 1]; return states and rewards."""
    velocity = 0.9 * states[:, 2:] + 0.1 * np.clip(actions, -1, 1)
    position = states[:, :2] + velocity
    return np.hstack([position, velocity]).astype(np.float32), 1 - np.square(position).sum(1)


def start(episodes, seed):
    """Return initial states (N, 4): anywhere within 1 of the origin, at rest."""
    random = np.random.default_rng(seed)
    return np.hstack([random.uniform(-1, 1, (episodes, 2)), np.zeros((episodes, 2))]).astype(np.float32)


def log(policy, episodes, noise=0.5, seed=0):
    """Return the transitions of a policy that acts with noise, as arrays in D4RL's layout."""
    random, states, steps = np.random.default_rng(seed), start(episodes, seed), []
    for t in range(STEPS):
        actions = np.clip(policy(states) + random.normal(0, noise, (episodes, 2)), -1, 1).astype(np.float32)
        after, rewards = move(states, actions)
        last = np.full(episodes, t == STEPS - 1)
        steps.append((states, actions, rewards.astype(np.float32), after, np.zeros(episodes, bool), last))
        states = after
    names = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")
    arrays = [np.stack(part, axis=1) for part in zip(*steps, strict=True)]  # (episodes, STEPS, …)
    return {name: array.reshape(-1, *array.shape[2:]) for name, array in zip(names, arrays, strict=True)}


def measure(policy, episodes=50, seed=1):
    """Return the mean return of a policy."""
    states, total = start(episodes, seed), 0.0
    for _ in range(STEPS):
        states, rewards = move(states, policy(states))
        total += rewards.mean()
    return float(total)


def pull(strength, damping=1.0):
    """Return a policy that accelerates toward the origin."""
    return lambda states: np.clip(-strength * states[:, :2] - damping * states[:, 2:], -1, 1)

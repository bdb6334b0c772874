"""The look-up agent on one question of a small world, enumerated: every transcript, with the signals of its oracles.

    game = LookupGame(LookupTask(num_entities=2, num_relations=2, hops=2, max_turns=3, reach=2))
    process = exact.lay_out(game)
    signals = game.signals(exact.enumerate_paths(process))

The rules are those of `creditjax.tasks.lookup`; only well-formed turns are legal, ``(E R + E)^K`` transcripts at most.
"""

from collections.abc import Mapping
import dataclasses
import functools

from creditjax.tasks.lookup import ANSWER, READ, LookupTask
from creditjax.tasks.turn_game import TurnGame


@dataclasses.dataclass(frozen=True)
class LookupGame(TurnGame):
    """One question of a :class:`LookupTask`: query, read a skill, or answer."""

    task: LookupTask
    index: int = 0

    @functools.cached_property
    def grammar(self) -> Mapping[int, tuple[int, ...]]:  # type: ignore[override]  # cached
        """A relation of an entity, an entity as the answer, or a skill to read."""
        words, task = self.task.vocabulary, self.task
        entities = tuple(range(words.entity, words.entity + task.num_entities))
        relations = tuple(range(words.relation, words.relation + task.num_relations))
        skills = tuple(range(words.skill, words.skill + task.num_skills))
        return {**dict.fromkeys(entities, relations), ANSWER: entities, **({READ: skills} if skills else {})}

    def agent(self, turn: int) -> int:
        """The agents take turns."""
        return turn % self.task.num_agents

"""Steps of a scripted session on groups with members of both protocols (KIP-848's migration).

Members of either protocol come, go, change to the other, commit; then all act as clients do until
nothing changes any more, and the group is looked at from outside. Everything that members are told on
the way is compared. Epochs and generations are told as distances from a group's first one.

Who gets what is compared, too: modern members ask for the range assignor, which goes by instance ids
and then by member ids. So that these are in the same order on both sides, a client's id is its name, as
member ids begin with it.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from oracle import Answer, Ref, Side, Step, know
from oracle_mixed_members import (
    BEAT,
    GONE,
    GONE_FOR_A_WHILE,
    HEARTBEAT,
    JOIN,
    LEAVE,
    NEEDS_ID,
    PATIENCE_MS,
    SYNC,
    TOPICS,
    Crowd,
    One,
    base_beat,
    beat,
    common_form,
    fall_silent,
    join_fields,
    leave,
    look,
    prepare,
    rest,
    subscription,
    sync,
    take,
)

from penstock.wire.protocol import ApiKey

if TYPE_CHECKING:
    from oracle_steps import Script

MEMBERS_MAX = 5


class MixedSteps:
    """Draws steps on two groups."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.chance = script.chance
        self.names = itertools.count()
        self.is_set_up = False
        self.crowds = [Crowd(f"x{script.seed}-{n}", is_cooperative=bool(n)) for n in range(2)]

    def topic(self, short: str) -> str:
        """A topic of these steps' own, which always has the same partitions."""
        return f"mixed-{self.script.seed}-{short}"

    def draw(self) -> Step:
        """A step."""
        if not self.is_set_up:
            self.is_set_up = True
            return self.set_up()
        crowd = self.chance.choice(self.crowds)
        kinds = [
            (5, self.join),
            (3, self.leave),
            (4, self.change),
            (2, self.subscribe),
            (3, self.commit),
            (2, self.committed),
            (3, self.misbehave),
            (2, self.settle),
            (1, self.die),
        ]
        (kind,) = self.chance.choices([one for _, one in kinds], [w for w, _ in kinds])
        return kind(crowd)

    def set_up(self) -> Step:
        """The topics."""

        def step(side: Side) -> Answer:
            codes = []
            for short, count in TOPICS.items():
                wanted = {"name": self.topic(short), "num_partitions": count}
                wanted |= {"replication_factor": 1, "configs": []}
                answer = side.ask("main", 19, 5, {"topics": [wanted], "timeout": 10_000})
                codes.append(answer["topics"][0]["error_code"])
                know(side, self.topic(short))
            return codes

        return "mixed set-up", step

    # -- members -----------------------------------------------------------------------------------

    def subscription(self) -> list[str]:
        """Topics to subscribe to."""
        return self.chance.choice([["a"], ["a", "b"], ["a", "b"], ["b"], ["a", "missing"]])

    def join(self, crowd: Crowd) -> Step:
        """A member of either protocol joins."""
        if len(crowd.members) >= MEMBERS_MAX:
            return self.leave(crowd)
        name = f"m{next(self.names):02}"
        back = next(iter(crowd.away), None)
        if back is not None and self.chance.random() < 0.6:
            crowd.away.remove(back)
            one = One(name, self.chance.random() < 0.5, back.topics, back.instance)
        else:
            instance = self.chance.choice([None, None, f"i{name}"])
            one = One(name, self.chance.random() < 0.5, self.subscription(), instance)
        kind = "classic" if one.is_classic else "modern"
        what = (
            f"{kind} joins" if back is None or one.instance != back.instance else f"{kind} is back"
        )
        return self.enter(crowd, one, what, is_another=what.endswith("joins"))

    def enter(self, crowd: Crowd, one: One, what: str, *, is_another: bool) -> Step:
        """A member joins; then all come to rest."""
        version = self.script.version(BEAT)
        has_others = bool(crowd.members or crowd.away) or not is_another
        crowd.is_new = not has_others and (one.is_classic or not crowd.is_modern)
        crowd.members.append(one)
        was_modern = crowd.is_modern
        if not one.is_classic:
            crowd.is_modern = True
        elif has_others:
            self.settle_kind(crowd)
        else:
            crowd.is_modern = False
        seen = crowd.look()
        versions = self.classic_versions()
        is_last = was_modern and not is_another and not crowd.is_modern
        what = "last modern is back as classic" if is_last else what

        def step(side: Side) -> Answer:
            if not one.is_classic:
                hello = beat(side, seen, one, version, is_first=True)
            else:
                hello = prepare(side, seen, one, versions[JOIN])
            if is_last:  # it is answered at once, and then told to join again, or not
                fields = join_fields(side, seen, one)
                take(side, seen, one, side.ask(one.name, JOIN, versions[JOIN], fields))
                sync(side, seen, one, versions[SYNC], [])
            answer = {"hello": hello, "seen": look(side, seen), **rest(side, seen, versions)}
            for _ in range(2 * is_last):  # one of the sides had no rebalance: begin again together
                side.real |= {f"again {each.name}": True for each in seen.members}
                answer |= rest(side, seen, versions)
            if is_last:
                side.real[f"first {crowd.id}"] = side.real[f"at {one.name}"] - 1
            return answer

        return f"mixed {what} {self.label(seen, one)}", step

    def classic_versions(self) -> dict[int, int]:
        """Versions of the classic requests: those that know instance ids."""
        first = {JOIN: 5, SYNC: 3, HEARTBEAT: 3, LEAVE: 3}
        return {
            key: self.chance.randint(low, self.script.versions[key][1])
            for key, low in first.items()
        }

    @staticmethod
    def label(crowd: Crowd, one: One) -> str:
        """A member among others, for people."""
        others = [f"{'c' if o.is_classic else 'm'}{o.name}" for o in crowd.members]
        return f"{crowd.id} {one.name} {one.topics} ({one.instance}) of {' '.join(others)}"

    def leave(self, crowd: Crowd) -> Step:
        """A member leaves."""
        if not crowd.members:
            return self.join(crowd)
        one = self.chance.choice(crowd.members)
        is_back_soon = one.instance is not None and not one.is_classic
        epoch = GONE_FOR_A_WHILE if is_back_soon and self.chance.random() < 0.4 else GONE
        by_instance = one.instance is not None and self.chance.random() < 0.5
        return self.exit(crowd, one, epoch, by_instance=by_instance)

    def exit(self, crowd: Crowd, one: One, epoch: int, *, by_instance: bool = False) -> Step:
        """A member leaves, for good or for a while; then the others come to rest."""
        others = [other for other in crowd.members if other is not one]
        are_classic = bool(others) and all(other.is_classic for other in others)
        if crowd.is_modern and are_classic and (crowd.away or epoch == GONE_FOR_A_WHILE):
            return self.settle(crowd)  # nobody would have Kafka compute an assignment
        version, versions = self.script.version(BEAT), self.classic_versions()
        crowd.members.remove(one)
        if epoch == GONE_FOR_A_WHILE:
            crowd.away.append(one)
        else:
            self.settle_kind(crowd)
        seen = crowd.look()

        def step(side: Side) -> Answer:
            if one.is_classic:
                bye = leave(side, seen, one, versions[LEAVE], by_instance=by_instance)
            else:
                bye = beat(side, seen, one, version, epoch=epoch)
            return {"bye": bye, "seen": look(side, seen), **rest(side, seen, versions)}

        return f"mixed leaves {epoch} {self.label(seen, one)}", step

    def die(self, crowd: Crowd) -> Step:
        """A classic member of a consumer group is heard of no more; the others share what it had."""
        victims = [one for one in crowd.members if one.is_classic]
        if not (crowd.is_modern and victims and any(not one.is_classic for one in crowd.members)):
            return self.settle(crowd)
        one, versions = self.chance.choice(victims), self.classic_versions()
        crowd.members.remove(one)
        seen = crowd.look()

        def step(side: Side) -> Answer:
            last = fall_silent(side, seen, one, versions)
            return {"last": last, "seen": look(side, seen), **rest(side, seen, versions)}

        return f"mixed dies {self.label(seen, one)}", step

    def settle_kind(self, crowd: Crowd) -> None:
        """Of which kind a group is after one has left for good."""
        present = crowd.members + crowd.away
        if crowd.is_modern and present:
            crowd.is_modern = any(not one.is_classic for one in present)

    def change(self, crowd: Crowd) -> Step:
        """A member comes back as one of the other protocol, as in a rolling upgrade."""
        static = [one for one in crowd.members if one.instance is not None]
        if not static:
            return self.join(crowd)
        old = self.chance.choice(static)
        others = [one for one in crowd.members if one is not old]
        if not old.is_classic:
            return self.exit(crowd, old, GONE_FOR_A_WHILE)  # a later join may be a classic one
        name = f"m{next(self.names):02}"
        one = One(name, not old.is_classic, self.subscription(), old.instance)
        crowd.members = others
        return self.enter(crowd, one, f"replaces {old.name}:", is_another=False)

    def subscribe(self, crowd: Crowd) -> Step:
        """A member wants other topics."""
        if not crowd.members:
            return self.join(crowd)
        one = self.chance.choice(crowd.members)
        one.topics = self.subscription()
        version, versions, seen = self.script.version(BEAT), self.classic_versions(), crowd.look()

        def step(side: Side) -> Answer:
            hello = None
            if one.is_classic:
                side.real[f"again {one.name}"] = True
            else:
                hello = beat(side, seen, one, version)
            return {"hello": hello, "seen": look(side, seen), **rest(side, seen, versions)}

        mine = next(o for o in seen.members if o.name == one.name)
        return f"mixed subscribes {self.label(seen, mine)}", step

    def settle(self, crowd: Crowd) -> Step:
        """All come to rest."""
        versions, seen = self.classic_versions(), crowd.look()
        return (
            f"mixed settles {crowd.id}",
            lambda side: rest(side, seen, versions),
        )

    # -- offsets -----------------------------------------------------------------------------------

    def commit(self, crowd: Crowd) -> Step:
        """A member commits, with its epoch, another one, another one's."""
        if not crowd.members:
            return self.join(crowd)
        one, other = self.chance.choice(crowd.members), self.chance.choice(crowd.members)
        version, name = self.script.version(8), self.topic(self.chance.choice("ab"))
        part = {
            "partition_index": self.chance.randrange(3),
            "committed_offset": self.chance.randrange(100),
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        right = Ref(f"at {one.name}")
        epoch = self.chance.choice([right, right, right, Ref(f"at {other.name}"), -1, 1000])
        fields = {
            "group_id": crowd.id,
            "generation_id_or_member_epoch": epoch,
            "member_id": self.chance.choice([Ref(f"id {one.name}")] * 3 + ["ghost", ""]),
            "group_instance_id": one.instance if version >= 7 else None,
            "topics": [
                {"name": name, "topic_id": Ref(f"topic {name}"), "partitions": [part]},
            ],
            "retention_time": -1,
        }
        kind = "classic" if one.is_classic else "modern"
        what = f"mixed commit v{version} {kind} {one.name} {epoch} {fields['member_id']} {crowd.id}"
        return what, lambda side: side.call(ApiKey.OFFSET_COMMIT, version, fields)

    def committed(self, crowd: Crowd) -> Step:
        """A member asks for the offsets."""
        if not crowd.members:
            return self.join(crowd)
        one = self.chance.choice(crowd.members)
        epoch = self.chance.choice([Ref(f"at {one.name}")] * 3 + [1000])
        wanted = {"group_id": crowd.id, "topics": None, "member_id": Ref(f"id {one.name}")}
        wanted["member_epoch"] = epoch
        version = self.chance.randint(9, self.script.versions[9][1])
        fields = {"groups": [wanted], "require_stable": False}
        what = f"mixed committed v{version} {one.name} {epoch} {crowd.id}"
        return what, lambda side: side.call(ApiKey.OFFSET_FETCH, version, fields)

    # -- what no client does -----------------------------------------------------------------------

    def misbehave(self, crowd: Crowd) -> Step:
        """What confused members send; nothing changes."""
        if not crowd.members:
            return self.join(crowd)
        one, seen = self.chance.choice(crowd.members), crowd.look()
        who = {"group_id": crowd.id, "member_id": Ref(f"id {one.name}")}
        at = {**who, "generation_id": Ref(f"at {one.name}")}
        join = {
            **who,
            "session_timeout": PATIENCE_MS,
            "rebalance_timeout": PATIENCE_MS,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": subscription(["a"], [])}],
        }
        hello = {**base_beat(crowd, one), "member_epoch": Ref(f"at {one.name}")}
        odd: list[tuple[int, dict[str, Any]]] = [
            (HEARTBEAT, {**at, "generation_id": 1000}),
            (HEARTBEAT, {**at, "member_id": "ghost"}),
            (HEARTBEAT, {**at, "group_instance_id": "ghost"}),
            (SYNC, {**at, "generation_id": 1000, "assignments": []}),
            (SYNC, {**at, "member_id": "ghost", "assignments": []}),
            (SYNC, {**at, "protocol_name": "other", "assignments": []}),
            (JOIN, {**join, "protocol_type": "connect"}),
            (JOIN, {**join, "session_timeout": 1}),
            (JOIN, {**join, "member_id": "", "protocols": []}),
            (JOIN, {**join, "member_id": "", "protocols": [{"name": "no", "metadata": b""}]}),
            (JOIN, {**join, "member_id": "ghost", "group_instance_id": one.instance or "i"}),
            (LEAVE, {**who, "members": [{"member_id": "ghost", "group_instance_id": None}]}),
            (LEAVE, {**who, "members": [{"member_id": "", "group_instance_id": "ghost"}]}),
            (BEAT, {**hello, "member_epoch": 1000}),
            (BEAT, {**hello, "member_id": "ghost"}),
            (BEAT, {**hello, "instance_id": "ghost"}),
            (42, {"groups_names": [crowd.id]}),
        ]
        if one.is_classic:
            odd.append((BEAT, {**hello, "member_epoch": GONE_FOR_A_WHILE}))
        else:
            odd.append((HEARTBEAT, at))
            odd.append((SYNC, {**at, "assignments": []}))
        key, fields = self.chance.choice(odd)
        version = self.script.versions[key][1]
        kind = "classic" if one.is_classic else "modern"
        modern = "consumer" if crowd.is_modern else "classic"
        shown = {n: v for n, v in fields.items() if v not in (None, PATIENCE_MS)}
        what = f"mixed odd {key} {kind} of {modern} group {shown}"

        def step(side: Side) -> Answer:
            answer = common_form(side, seen, key, side.ask("main", key, version, fields))
            if key == JOIN and answer and answer["error_code"] == NEEDS_ID:
                answer["member_id"] = "<new>"
            return answer

        return what, step

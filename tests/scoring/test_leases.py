"""
Laws of the lease ledger: at every moment granted = confirmed + released + expired + outstanding, in leases and in
tokens; ends are idempotent; nothing is counted twice and nothing outlives its time.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from scoring.leases import Lease, LeaseLedger


def lease(
    name: str = "a", pool: str = "d/0", tokens: int = 10, at_s: float = 0.0, ttl_s: float = 5.0, **more: int
) -> Lease:
    """Return a lease."""
    return Lease(lease_id=name, pool_id=pool, tokens=tokens, granted_at_s=at_s, expires_at_s=at_s + ttl_s, **more)


class Ledger(RuleBasedStateMachine):
    """Anything at all may happen to a ledger, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = LeaseLedger(visible_after_s=0.5)
        self.now_s = 0.0
        self.number = 0

    @rule(pool=st.sampled_from(["p/0", "d/0", "d/1"]), tokens=st.integers(0, 10**6), ttl_s=st.floats(0.1, 30))
    def grant(self, pool: str, tokens: int, ttl_s: float) -> None:
        """Grant a new lease, and the same one again."""
        self.number += 1
        new = lease(f"r{self.number}", pool, tokens, self.now_s, ttl_s)
        assert self.ledger.grant(new)
        assert not self.ledger.grant(new)

    @rule(number=st.integers(0, 60), how=st.sampled_from(["confirm", "release"]))
    def close(self, number: int, how: str) -> None:
        """Close any lease, open or not, twice."""
        getattr(self.ledger, how)(f"r{number}")
        before = self.ledger.totals()
        assert not getattr(self.ledger, how)(f"r{number}")
        assert self.ledger.totals() == before

    @rule(seconds=st.floats(0, 10))
    def pass_time(self, seconds: float) -> None:
        """Let time pass and expire what is over."""
        self.now_s += seconds
        for over in self.ledger.expire(self.now_s):
            assert over.expires_at_s <= self.now_s
        assert all(each.expires_at_s > self.now_s for each in self.ledger.open_leases())

    @rule(pool=st.sampled_from(["p/0", "d/0"]), back_s=st.floats(0, 3))
    def hear(self, pool: str, back_s: float) -> None:
        """A reading arrives that was true a while ago; merging it confirms exactly what it covers."""
        true_at_s = self.now_s - back_s
        left = self.ledger.outstanding(pool, -1.0, true_at_s)
        self.ledger.merge({pool: true_at_s})
        assert self.ledger.outstanding(pool, -1.0) == left

    @invariant()
    def conserves(self) -> None:
        """Every lease has exactly one fate."""
        totals = self.ledger.totals()
        assert totals.granted_count == (
            totals.confirmed_count + totals.released_count + totals.expired_count + totals.outstanding_count
        )
        assert totals.granted_tokens == (
            totals.confirmed_tokens + totals.released_tokens + totals.expired_tokens + totals.outstanding_tokens
        )
        by_pool = sum(self.ledger.outstanding(pool, -1.0).tokens for pool in self.ledger.pools())
        assert by_pool == totals.outstanding_tokens


TestLedger = Ledger.TestCase
TestLedger.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


def test_a_lease_counts_until_its_reading_arrives_and_never_after() -> None:
    """Outstanding falls exactly when a reading from after the grant (and the dispatch) is taken into account."""
    ledger = LeaseLedger(visible_after_s=0.25)
    ledger.grant(lease(at_s=10.0, tokens=100, uncached_tokens=80, transfer_tokens=60))
    assert ledger.outstanding("d/0", 10.1, reported_at_s=9.9).tokens == 100
    assert ledger.outstanding("d/0", 10.3, reported_at_s=10.2).tokens == 100
    assert ledger.outstanding("d/0", 10.4, reported_at_s=10.25).count == 0
    assert ledger.outstanding("d/1", 10.1).count == 0
    assert len(ledger.merge({"d/0": 10.25, "d/1": 99.0})) == 1
    assert ledger.merge({"d/0": 10.25}) == ()
    assert ledger.totals().confirmed_tokens == 100


def test_an_expired_lease_claims_nothing_even_before_it_is_swept() -> None:
    """Reading at a time after the end leaves the lease out; `expire` then counts it once."""
    ledger = LeaseLedger()
    ledger.grant(lease(ttl_s=5.0))
    assert ledger.outstanding("d/0", 4.9).tokens == 10
    assert ledger.outstanding("d/0", 5.0).tokens == 0
    assert [each.lease_id for each in ledger.expire(5.0)] == ["a"]
    assert ledger.expire(6.0) == ()
    assert not ledger.release("a")


def test_an_open_id_cannot_promise_something_else() -> None:
    """The same id with other contents is a mistake of the caller and refused; once closed it may be used again."""
    ledger = LeaseLedger()
    ledger.grant(lease())
    with pytest.raises(ValueError, match="open with other contents"):
        ledger.grant(lease(tokens=11))
    assert ledger.release_all(["a", "a", "b"]) == 1
    assert ledger.grant(lease(tokens=11))


@pytest.mark.parametrize("bad", [{"tokens": -1}, {"ttl_s": 0.0}, {"uncached_tokens": -5}, {"transfer_tokens": -5}])
def test_absurd_leases_are_refused(bad: dict[str, float]) -> None:
    """A lease that promises less than nothing or ends before it begins does not exist."""
    with pytest.raises(ValueError, match="lease a: "):
        lease(**bad)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 100)), max_size=20), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_order_of_grants_never_matters(grants: list[tuple[int, int]], random: object) -> None:
    """Outstanding is a sum: the order in which leases were granted leaves no trace."""
    leases = [lease(f"r{number}", f"d/{pool}", tokens) for number, (pool, tokens) in enumerate(grants)]
    shuffled = list(leases)
    random.shuffle(shuffled)
    one, two = LeaseLedger(), LeaseLedger()
    for left, right in zip(leases, shuffled, strict=True):
        one.grant(left)
        two.grant(right)
    assert one.totals() == two.totals()
    assert [one.outstanding(pool, 0.0) for pool in one.pools()] == [two.outstanding(pool, 0.0) for pool in two.pools()]

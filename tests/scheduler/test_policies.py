import pytest

from interlock.core.component import BuildContext
from interlock.core.errors import ConfigError
from interlock.core.scheduler import Load
from interlock.core.seams import SEAMS
from interlock.core.testing.scheduler_contract import (
    AdmissionContract,
    OrderContract,
    VictimContract,
    a_view,
)
from interlock.plugins.scheduler import (
    DecodeFirstConfig,
    PrefillFirstConfig,
    WhenItFitsConfig,
    components,
)
from interlock.plugins.scheduler.admission import WhenItFits
from interlock.plugins.scheduler.order import ArrivalOrder, PriorityOrder
from interlock.plugins.scheduler.victim import LatestVictim, LowestPriorityVictim


class TestArrivalOrder(OrderContract):
    def make(self):
        return ArrivalOrder()


class TestPriorityOrder(OrderContract):
    def make(self):
        return PriorityOrder()


class TestWhenItFits(AdmissionContract):
    def make(self):
        return WhenItFits(WhenItFitsConfig())


class TestWhenItFitsWithEverythingReserved(AdmissionContract):
    def make(self):
        return WhenItFits(WhenItFitsConfig(reserve_share=1.0))


class TestLatestVictim(VictimContract):
    def make(self):
        return LatestVictim()


class TestLowestPriorityVictim(VictimContract):
    def make(self):
        return LowestPriorityVictim()


def ids_in_order(policy, views):
    return [view.id for view in sorted(views, key=policy.key)]


def test_arrival_goes_by_arrival_then_id():
    views = [a_view(3, arrival_s=0.0), a_view(1, arrival_s=0.5), a_view(0, arrival_s=0.5)]
    assert ids_in_order(ArrivalOrder(), views) == [3, 0, 1]


def test_priority_goes_by_priority_then_arrival_then_id():
    views = [
        a_view(0, priority=0, arrival_s=0.0),
        a_view(1, priority=5, arrival_s=9.0),
        a_view(2, priority=5, arrival_s=1.0),
        a_view(3, priority=-1, arrival_s=0.0),
    ]
    assert ids_in_order(PriorityOrder(), views) == [2, 1, 0, 3]


def admits(running, free_pages, needed_pages, **options):
    load = Load(0.0, running, free_pages, 20, needed_pages)
    return WhenItFits(WhenItFitsConfig(**options)).admit(a_view(0), load)


def test_a_request_starts_exactly_when_its_pages_fit():
    assert admits(running=3, free_pages=5, needed_pages=5)
    assert not admits(running=3, free_pages=4, needed_pages=5)


def test_the_reserve_stays_free_while_something_runs():
    assert admits(running=1, free_pages=9, needed_pages=5, reserve_share=0.2)
    assert not admits(running=1, free_pages=8, needed_pages=5, reserve_share=0.2)
    assert admits(running=0, free_pages=20, needed_pages=20, reserve_share=0.2)
    assert not admits(running=0, free_pages=4, needed_pages=5)


def test_victims_are_chosen_by_admission_and_by_priority():
    candidates = [
        a_view(1, admission=4, priority=2),
        a_view(2, admission=7, priority=1),
        a_view(3, admission=5, priority=0),
        a_view(4, admission=6, priority=0),
    ]
    assert LatestVictim().choose(candidates) == 2
    assert LowestPriorityVictim().choose(candidates) == 4


@pytest.mark.parametrize(
    ("config", "option", "value"),
    [
        (WhenItFitsConfig, "reserve_share", -0.1),
        (WhenItFitsConfig, "reserve_share", 1.5),
        (WhenItFitsConfig, "reserve_share", float("nan")),
        (PrefillFirstConfig, "max_prefill_steps", 0),
        (DecodeFirstConfig, "min_prefill_share", 0.0),
        (DecodeFirstConfig, "min_prefill_share", 1.0),
        (DecodeFirstConfig, "min_prefill_share", float("nan")),
    ],
)
def test_an_option_out_of_range_is_named_with_its_value(config, option, value):
    with pytest.raises(ConfigError, match=f"^{option}={value} is not a "):
        config(**{option: value})


def test_every_component_is_built_as_what_its_seam_asks_for():
    context = BuildContext(model=None)
    for component in components():
        built = component.make(component.config(), context)
        assert isinstance(built, SEAMS[component.seam].interface_class())
        assert component.config().name == component.name

"""Flags are made of a settings model, and settings are made into flags again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgate.errors import InvalidArgument
from specgate.service.config import config_of, parse_flags
from specgate.service.flags import to_flags
from specgate.service.settings import settings_of
from specgate.types import Attention, Dtype

SETTINGS = {
    "device": st.sampled_from(["auto", "cpu", "cuda:1"]),
    "dtype": st.sampled_from(Dtype),
    "attention": st.sampled_from(Attention),
    "cuda_graphs": st.booleans(),
    "cpu_graphs": st.booleans(),
    "threads": st.integers(1, 1024) | st.none(),
    "kv_tokens": st.integers(16, 1 << 40) | st.none(),
    "drain_s": st.floats(0, 86_400),
    "insecure": st.booleans(),
    "run_ahead": st.integers(0, 256),
}


@given(st.fixed_dictionaries({}, optional=SETTINGS))
def test_what_is_made_into_flags_is_parsed_back(values: dict[str, object]) -> None:
    config = config_of("drafter", model="a folder", **values)
    # None is what a setting is where its flag is absent; a process asks torch for its threads then.
    assert parse_flags("drafter", to_flags(config)) == config


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kv_tokens": 15}, r"--kv-tokens: 15 is outside \[16, "),
        ({"run_ahead": 257}, r"--run-ahead: 257 is outside \[0, 256\]"),
        ({"dtype": "int8"}, "--dtype: 'int8' is not one of auto, float32, bfloat16, float16"),
        ({"method": "lookup"}, "--method: 'lookup' is not one of model, layer-skip, suffix"),
        ({"method": "suffix"}, "--model: 'm' is not for the method suffix, which has no model"),
        ({"method": "layer-skip"}, "--skip: is needed for the method layer-skip"),
        ({"skip": "f"}, "--skip: 'f' is for the method layer-skip, not for model"),
        ({"attention": "flash"}, "--attention: 'flash' is not one of auto, varlen, sdpa"),
        ({"device": "gpu"}, "--device: 'gpu' is not one of auto, cpu, cuda or cuda:N"),
        ({"modle": "m"}, r"--modle: Extra inputs are not permitted; it is 'm'"),
        ({"tls_key": "k"}, "--tls-certificate: and --tls-key go together"),
        ({"tls_client_ca": "ca"}, "--tls-client-ca: needs --tls-certificate"),
    ],
)
def test_what_is_wrong_is_told_by_flag_value_and_limit(values: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{message}"):
        config_of("drafter", model="m", **values)


def test_a_verifier_has_nothing_of_a_drafter() -> None:
    with pytest.raises(InvalidArgument, match=r"^--run-ahead: "):
        settings_of("verifier", model="m", run_ahead=1)

"""The facade that the front doors use: one orchestrator, many generations."""

import asyncio
from typing import Self
from weakref import WeakSet

from orchestrator.discovery import KnownDrafters, ask_one, check_proto
from orchestrator.generation import Generation
from orchestrator.links import GrpcDialer
from orchestrator.opening import make_spec
from orchestrator.output_text import OutputText
from orchestrator.ports import Pool
from orchestrator.request import GenerationRequest
from orchestrator.session import Session
from orchestrator.streams import ChannelCache
from orchestrator.text import TextTokenizer
from orchestrator.timeouts import Timeouts
from specgate.errors import InvalidArgument, SpecgateError, TokenizerMismatch
from specgate.rpc.tls import ClientTlsFiles
from specgate.tokenizer import first_difference
from specgate.types import ModelInfo

__all__ = ["Generation", "Orchestrator"]

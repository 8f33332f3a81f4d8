from loadgen.api import Result as Result
from loadgen.api import compare as compare
from loadgen.api import read as read
from loadgen.api import run as run
from loadgen.api import search as search
from loadgen.api import sweep as sweep
from loadgen.cases.bridge import BridgeScenario as BridgeScenario
from loadgen.cases.connburst import Connburst as Connburst
from loadgen.cases.fanin import Fanin as Fanin
from loadgen.cases.fanout import Fanout as Fanout
from loadgen.cases.latency import Latency as Latency
from loadgen.cases.persistent import Persistent as Persistent
from loadgen.cases.queue import Queue as Queue
from loadgen.cases.request import Request as Request
from loadgen.specjms.scenario import SupplyChain as SupplyChain

__version__: str
PROGRAM: str

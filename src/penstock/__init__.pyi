from penstock import capture as capture
from penstock import serve as serve
from penstock import sinks as sinks
from penstock import spark as spark
from penstock import testing as testing
from penstock.app import App as App
from penstock.engine.driver import Progress as Progress
from penstock.errors import PenstockError as PenstockError
from penstock.files import ingest as ingest
from penstock.flow import Stream as Stream
from penstock.flow import Table as Table
from penstock.flow import aggregate as aggregate
from penstock.flow import approx_count_distinct as approx_count_distinct
from penstock.flow import approx_quantile as approx_quantile
from penstock.flow import arg_max as arg_max
from penstock.flow import arg_min as arg_min
from penstock.flow import avg as avg
from penstock.flow import avro as avro
from penstock.flow import bloom_filter_agg as bloom_filter_agg
from penstock.flow import collect as collect
from penstock.flow import corrected_time as corrected_time
from penstock.flow import count as count
from penstock.flow import count_distinct as count_distinct
from penstock.flow import count_window as count_window
from penstock.flow import csv as csv
from penstock.flow import event_time as event_time
from penstock.flow import first as first
from penstock.flow import frequencies as frequencies
from penstock.flow import frequent as frequent
from penstock.flow import header as header
from penstock.flow import hopping as hopping
from penstock.flow import last as last
from penstock.flow import max as max  # noqa: A004 - the field's names, used as ps.max and so on
from penstock.flow import min as min  # noqa: A004
from penstock.flow import pattern as pattern
from penstock.flow import processing_time as processing_time
from penstock.flow import quantile as quantile
from penstock.flow import record_format as record_format
from penstock.flow import session as session
from penstock.flow import sliding as sliding
from penstock.flow import stddev as stddev
from penstock.flow import sum as sum  # noqa: A004
from penstock.flow import theta_sketch_agg as theta_sketch_agg
from penstock.flow import theta_union_agg as theta_union_agg
from penstock.flow import tumbling as tumbling
from penstock.flow import variance as variance
from penstock.history import History as History
from penstock.queue import Queue as Queue

__version__: str

"""*GPU*: what NVIDIA's exporter says of each GPU, and what a token costs in energy.

The names are DCGM's: https://docs.nvidia.com/datacenter/dcgm/latest/dcgm-api/dcgm-api-field-ids.html.
Without the exporter all panels say so.
"""

from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards import style
from dashboards.frame import dashboard
from dashboards.panels import Look, Panel, Query, graph, number, words
from dashboards.promql import of_run, rate, ratio, total

UID = "loadgen-gpu"

NO_GPU = "no GPU exporter has been scraped"
LEGEND = "GPU {{gpu}}"

INTRODUCTION = (
    "What the GPUs do meanwhile, from NVIDIA's DCGM exporter. Utilisation says that some kernel "
    "ran, not that the GPU was used well: look at the tensor cores and at the memory's bandwidth "
    "beside it. A clock that drops while the temperature or the power is at its limit means that "
    "the GPU was throttled."
)

BY_GPU = Look(colours=tuple(style.numbered_colours("GPU")), dashed="/memory$/")

HOT = ((83, style.DOUBTFUL), (90, style.BAD))
"""Celsius: where data-centre GPUs begin to slow down, and where they stop; it differs by model."""


def build() -> Dashboard:
    return dashboard(
        UID,
        "GPU",
        "Utilisation, memory, power, temperature and clocks of each GPU, and energy a token.",
        [
            ("", [words(INTRODUCTION), *_now()]),
            ("Use", _use()),
            ("Limits", _limits()),
        ],
        choose=False,
    )


def _now() -> list[Panel]:
    return [
        number(
            "Utilisation",
            "Share of time in which a kernel ran. From DCGM_FI_DEV_GPU_UTIL.",
            style.PERCENT,
            Query(_each("DCGM_FI_DEV_GPU_UTIL"), LEGEND),
            span=6,
            empty=NO_GPU,
            look=BY_GPU,
        ),
        number(
            "Memory taken",
            "Share of the GPU's memory that is taken; vLLM takes its share at the start and "
            "keeps it. From DCGM_FI_DEV_FB_USED and DCGM_FI_DEV_FB_FREE.",
            style.SHARE,
            Query(_memory_share(), LEGEND),
            span=6,
            empty=NO_GPU,
            look=BY_GPU,
        ),
        number(
            "Power now",
            "What the GPU draws now. From DCGM_FI_DEV_POWER_USAGE.",
            style.WATTS,
            Query(_each("DCGM_FI_DEV_POWER_USAGE"), LEGEND),
            span=6,
            empty=NO_GPU,
            look=BY_GPU,
        ),
        number(
            "Errors (XID)",
            "Number of the last error of the driver; 0 is none. From DCGM_FI_DEV_XID_ERRORS.",
            style.COUNT,
            Query("max(DCGM_FI_DEV_XID_ERRORS)", "XID"),
            span=6,
            empty=NO_GPU,
            limits=((1, style.BAD),),
        ),
    ]


def _each(metric: str) -> str:
    return f"max by (gpu) ({metric})"


def _memory_share() -> str:
    used = total("DCGM_FI_DEV_FB_USED", "gpu")
    return ratio(used, f"({used} + {total('DCGM_FI_DEV_FB_FREE', 'gpu')})")


def _use() -> list[Panel]:
    millijoules = rate("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION")
    tokens = rate(of_run("loadgen_output_tokens_total"))
    return [
        graph(
            "GPU utilisation",
            "Share of time in which a kernel ran; high under load is good. From "
            "DCGM_FI_DEV_GPU_UTIL.",
            style.PERCENT,
            Query(_each("DCGM_FI_DEV_GPU_UTIL"), LEGEND),
            span=8,
            empty=NO_GPU,
            look=BY_GPU,
            top=100,
        ),
        graph(
            "Tensor cores active",
            "Share of cycles in which the tensor cores worked; decoding small batches keeps it "
            "low. From DCGM_FI_PROF_PIPE_TENSOR_ACTIVE.",
            style.SHARE,
            Query(_each("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"), LEGEND),
            span=8,
            empty=NO_GPU,
            look=BY_GPU,
            top=1,
        ),
        graph(
            "Memory bandwidth in use",
            "Share of cycles in which the memory was read or written; decoding is bound by it. "
            "From DCGM_FI_PROF_DRAM_ACTIVE.",
            style.SHARE,
            Query(_each("DCGM_FI_PROF_DRAM_ACTIVE"), LEGEND),
            span=8,
            empty=NO_GPU,
            look=BY_GPU,
            top=1,
        ),
        graph(
            "Memory used",
            "Weights, KV cache and scratch space. From DCGM_FI_DEV_FB_USED.",
            style.MEBIBYTES,
            Query(_each("DCGM_FI_DEV_FB_USED"), LEGEND),
            span=12,
            empty=NO_GPU,
            look=BY_GPU,
        ),
        graph(
            "Energy per output token",
            "Energy of all GPUs over all tokens that reached the client; low is good. It is a "
            "target's own only while the GPUs serve no other. From "
            "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION over loadgen_output_tokens_total.",
            style.JOULES,
            Query(ratio(f"{millijoules} / 1000", tokens), "all GPUs"),
            span=12,
            empty=NO_GPU,
            look=BY_GPU,
        ),
    ]


def _limits() -> list[Panel]:
    return [
        graph(
            "Power",
            "What each GPU draws; flat at its limit means that it slows down for it. From "
            "DCGM_FI_DEV_POWER_USAGE.",
            style.WATTS,
            Query(_each("DCGM_FI_DEV_POWER_USAGE"), LEGEND),
            span=8,
            empty=NO_GPU,
            look=BY_GPU,
        ),
        graph(
            "Temperature",
            "Of the chip (solid) and of its memory (dashed). Above the first line most GPUs slow "
            "down. From DCGM_FI_DEV_GPU_TEMP and DCGM_FI_DEV_MEMORY_TEMP.",
            style.CELSIUS,
            Query(_each("DCGM_FI_DEV_GPU_TEMP"), LEGEND),
            Query(_each("DCGM_FI_DEV_MEMORY_TEMP"), f"{LEGEND} memory"),
            span=8,
            empty=NO_GPU,
            look=BY_GPU,
            limits=HOT,
        ),
        graph(
            "Clocks",
            "Of the processors (solid) and of the memory (dashed); a drop under load is "
            "throttling. From DCGM_FI_DEV_SM_CLOCK and DCGM_FI_DEV_MEM_CLOCK.",
            style.HERTZ,
            Query(f"{_each('DCGM_FI_DEV_SM_CLOCK')} * 1e6", LEGEND),
            Query(f"{_each('DCGM_FI_DEV_MEM_CLOCK')} * 1e6", f"{LEGEND} memory"),
            span=8,
            empty=NO_GPU,
            look=BY_GPU,
        ),
    ]

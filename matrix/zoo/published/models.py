"""The published checkpoints: hub names, revisions and the parts of config.json that the engine reads. Data only.

Recorded without access to the files. Fields on which public sources agree are given as they are; the rest is listed in
`unverified`. `specmatrix checkpoints check` compares downloaded files with the verified fields and then uses the files.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

# The head of a repository, where no commit is known.
TIP: Final = "main"


@dataclass(frozen=True, slots=True)
class Published:
    """A checkpoint on a hub.

    repo: its hub name; revision: the intended commit. config: parts of its config.json. numbers: number of floating-
    point parameters, from its model card or file sizes; None if unknown. agreement: whether a licence must be accepted
    before download. unverified: facts that could not be verified. sure: the fields of the engine's ModelConfig with
    which a downloaded file must agree, None for all.
    """

    repo: str
    revision: str
    config: Mapping[str, Any]
    numbers: int | None = None
    agreement: bool = False
    unverified: tuple[str, ...] = ()
    sure: tuple[str, ...] | None = None


# The fields that a draft head's file size confirms; it does not confirm its context length, RoPE and epsilon.
SIZES: Final = (
    "architecture",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "draft",
)


def _config(architecture: str, model_type: str, **fields: object) -> Mapping[str, Any]:
    own = {"architectures": [architecture], "model_type": model_type, "hidden_act": "silu"}
    return MappingProxyType(own | fields)


def _llama3(factor: float) -> dict[str, object]:
    """The rope_scaling of Llama 3.1 and 3.2."""
    return {
        "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
    }


MODELS: Final[Mapping[str, Published]] = {
    "llama-3.1-8b-instruct": Published(
        "meta-llama/Llama-3.1-8B-Instruct",
        "0e9e39f249a16976918f6564b8830bc894c89659",
        _config(
            "LlamaForCausalLM",
            "llama",
            hidden_size=4096,
            intermediate_size=14336,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=8,
            vocab_size=128256,
            max_position_embeddings=131072,
            rms_norm_eps=1e-05,
            tie_word_embeddings=False,
            torch_dtype="bfloat16",
            **_llama3(8.0),
        ),
        numbers=8_030_261_248,
        agreement=True,
    ),
    # The EAGLE authors' head, yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, has the same tensors, but only as a pickle.
    "llama-3.1-8b-eagle3": Published(
        "lmsys/SGLang-EAGLE3-Llama-3.1-8B-Instruct-SpecForge",
        "4a8e38f7dbee5d6dc82369f59a58540855fe09af",
        # Its config.json has no rope_theta, so the default applies, whatever the target's is.
        _config(
            "LlamaForCausalLMEagle3",
            "llama",
            hidden_size=4096,
            intermediate_size=14336,
            num_hidden_layers=1,
            num_attention_heads=32,
            num_key_value_heads=8,
            vocab_size=128256,
            draft_vocab_size=32000,
            max_position_embeddings=2048,
            rms_norm_eps=1e-05,
            tie_word_embeddings=False,
        ),
        unverified=(
            "config.json is that of SpecForge's recipe for this target (configs/llama3-8B-eagle3.json); of its files "
            "only the hub's count of 0.4 B parameters in safetensors is known",
        ),
        sure=SIZES,
    ),
    "llama-3.2-1b-instruct": Published(
        "meta-llama/Llama-3.2-1B-Instruct",
        "9213176726f574b556790deb65791e0c5aa438b6",
        _config(
            "LlamaForCausalLM",
            "llama",
            hidden_size=2048,
            intermediate_size=8192,
            num_hidden_layers=16,
            num_attention_heads=32,
            num_key_value_heads=8,
            head_dim=64,
            vocab_size=128256,
            max_position_embeddings=131072,
            rms_norm_eps=1e-05,
            tie_word_embeddings=True,
            torch_dtype="bfloat16",
            **_llama3(32.0),
        ),
        numbers=1_235_814_400,
        agreement=True,
    ),
    "qwen3-8b": Published(
        "Qwen/Qwen3-8B",
        "b968826d9c46dd6066d109eabc6255188de91218",
        _config(
            "Qwen3ForCausalLM",
            "qwen3",
            attention_bias=False,
            hidden_size=4096,
            intermediate_size=12288,
            num_hidden_layers=36,
            num_attention_heads=32,
            num_key_value_heads=8,
            head_dim=128,
            vocab_size=151936,
            max_position_embeddings=40960,
            max_window_layers=36,
            use_sliding_window=False,
            sliding_window=None,
            rms_norm_eps=1e-06,
            rope_theta=1000000,
            rope_scaling=None,
            tie_word_embeddings=False,
            torch_dtype="bfloat16",
        ),
        numbers=8_190_735_360,
    ),
    "qwen3-8b-eagle3": Published(
        "Tengyunw/qwen3_8b_eagle3",
        "2a1059d51f622b8cad7d7d72840153ffea5488a0",
        _config(
            "LlamaForCausalLMEagle3",
            "llama",
            hidden_size=4096,
            intermediate_size=12288,
            num_hidden_layers=1,
            num_attention_heads=32,
            num_key_value_heads=8,
            head_dim=128,
            vocab_size=151936,
            draft_vocab_size=32000,
            rms_norm_eps=1e-06,
            tie_word_embeddings=False,
        ),
        # A fine-tuned version has 799,457,128 bytes: these parameters in 16 bits, d2t and t2d.
        numbers=399_523_840,
        unverified=(
            "whether its weights are in safetensors",
            "max_position_embeddings, rope_theta and rms_norm_eps of its config.json",
        ),
        sure=SIZES,
    ),
    "qwen3-8b-dflash": Published(
        "z-lab/Qwen3-8B-DFlash-b16",
        "9b41424b7109f9c5413454f481b09a82b85333f4",
        _config(
            "DFlashDraftModel",
            "qwen3",
            attention_bias=False,
            block_size=16,
            dflash_config={"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]},
            hidden_size=4096,
            intermediate_size=12288,
            num_hidden_layers=5,
            layer_types=["full_attention"] * 5,
            num_attention_heads=32,
            num_key_value_heads=8,
            head_dim=128,
            vocab_size=151936,
            max_position_embeddings=40960,
            rms_norm_eps=1e-06,
            rope_theta=1000000,
            rope_scaling=None,
            tie_word_embeddings=False,
        ),
        # Its files have 1.95 GiB.
        numbers=1_048_626_432,
        unverified=("mask_token_id and target_layer_ids are taken from its training recipe",),
    ),
    "mistral-7b-instruct": Published(
        "mistralai/Mistral-7B-Instruct-v0.1",
        "ec5deb64f2c6e6fa90c1abf74a91d5c93a9669ca",
        _config(
            "MistralForCausalLM",
            "mistral",
            hidden_size=4096,
            intermediate_size=14336,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=8,
            vocab_size=32000,
            max_position_embeddings=32768,
            sliding_window=4096,
            rms_norm_eps=1e-05,
            rope_theta=10000.0,
            tie_word_embeddings=False,
            torch_dtype="bfloat16",
        ),
        numbers=7_241_732_096,
    ),
    "gigachat3-10b": Published(
        "ai-sage/GigaChat3-10B-A1.8B-bf16",
        TIP,
        _config(
            "DeepseekV3ForCausalLM",
            "deepseek_v3",
            hidden_size=1536,
            intermediate_size=8960,
            num_hidden_layers=26,
            num_nextn_predict_layers=1,
            num_attention_heads=32,
            num_key_value_heads=32,
            q_lora_rank=None,
            kv_lora_rank=512,
            qk_nope_head_dim=128,
            qk_rope_head_dim=64,
            v_head_dim=192,
            n_routed_experts=64,
            num_experts_per_tok=4,
            moe_intermediate_size=1280,
            n_shared_experts=1,
            n_group=1,
            topk_group=1,
            first_k_dense_replace=1,
            vocab_size=128256,
            max_position_embeddings=262144,
            tie_word_embeddings=False,
            torch_dtype="bfloat16",
        ),
        unverified=(
            "the revision",
            "most sizes: they come to the card's 10 B numbers, 1.8 B of them active, and to the 11.4 GB of its 8-bit "
            "export",
            "rope_theta and rope_scaling",
            "that its prediction layer is laid out as DeepSeek-V3's",
        ),
        sure=("architecture", "num_layers", "bundled_layers"),
    ),
}

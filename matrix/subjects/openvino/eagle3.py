"""EAGLE3 drafts in OpenVINO's format: a Llama of one layer, which then reads the target's hidden states too. Runs in
OpenVINO's environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from openvino import opset13 as ops

# The projection of the target's three hidden states, which the pipeline moves to the target.
FUSED: Final = "fc.weight"
EXTRA: Final = (FUSED, "midlayer.hidden_norm.weight", "d2t", "t2d")
LAYER: Final = "model.layers.0."
READERS: Final = tuple(f"self_attn.{name}_proj.weight" for name in "qkv")


def as_llama(config: Mapping[str, Any], tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors of the draft's layer under a Llama's names; its attention reads the embedding alone."""
    found: dict[str, Any] = {}
    for name, tensor in tensors.items():
        if name not in EXTRA:
            named = name.replace("midlayer.", LAYER)
            part = tensor[:, : config["hidden_size"]] if named.endswith(READERS) else tensor
            found[f"model.{named}" if named.startswith(("embed_tokens", "norm")) else named] = part
    return found


def name_layers(model: Any) -> None:
    """Give the output of each layer the name by which the pipeline finds the states that a draft reads."""
    for number, node in enumerate(_outputs(model)):
        node.set_friendly_name(f"layers.{number}/output")


def as_draft(model: Any, config: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    """Change the model of `as_llama` into the draft: its attention reads embedding and hidden state, to which its layer
    adds. Logits are of its own vocabulary, whose table of offsets is a result."""
    hidden = ops.parameter([-1, -1, -1], np.float32, name="hidden_states")
    hidden.output(0).set_names({"hidden_states"})
    fused = ops.matmul(hidden, _weight(tensors[FUSED]), False, True)
    squares = ops.reduce_mean(ops.multiply(fused, fused), ops.constant(np.array([-1], np.int32)), True)
    size = ops.sqrt(ops.add(squares, ops.constant(np.float32(config["rms_norm_eps"]))))
    normed = ops.multiply(ops.divide(fused, size), _weight(tensors["midlayer.hidden_norm.weight"]))
    weights = {node.get_friendly_name(): node for node in model.get_ordered_ops() if node.get_type_name() == "Constant"}
    both: Any = None
    for name in READERS:
        old = _product(weights, name)
        both = ops.concat([old.input_value(0), normed], -1) if both is None else both
        new = ops.matmul(both, _weight(tensors[f"midlayer.{name}"]), False, True)
        for reader in list(old.output(0).get_target_inputs()):
            reader.replace_source_output(new.output(0))
    written = _product(weights, "self_attn.o_proj.weight")
    residual = _reader(written)
    place = int(residual.input_value(0).get_node().get_friendly_name() == written.get_friendly_name())
    residual.input(place).replace_source_output(fused.output(0))
    for node in _outputs(model):
        node.set_friendly_name("midlayer/output")
    offsets = ops.constant(tensors["d2t"])
    offsets.set_friendly_name("d2t")
    offsets.output(0).set_names({"d2t"})
    model.add_parameters([hidden])
    model.add_results([ops.result(offsets)])
    model.validate_nodes_and_infer_types()
    model.set_rt_info(True, "eagle3_mode")
    model.set_rt_info(list(config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]), "hidden_layers_list")


def _outputs(model: Any) -> Iterator[Any]:
    """The sum of residual and MLP of each layer: the pipeline looks for these operations."""
    for node in model.get_ordered_ops():
        product = node.input_value(1).get_node() if node.get_type_name() == "Add" else node
        gated = product.get_type_name() == "MatMul" and product.input_value(0).get_node().get_type_name() == "Multiply"
        if gated and product is not node:
            yield node


def _product(weights: Mapping[str, Any], name: str) -> Any:
    """The product with a weight, which is converted to float32 first."""
    return _reader(_reader(weights[f"model.layers[0].{name}"]))


def _reader(node: Any) -> Any:
    (found,) = node.output(0).get_target_inputs()
    return found.get_node()


def _weight(tensor: Any) -> Any:
    return ops.convert(ops.constant(tensor), "f32")

"""The verb export: one line for bad input, exit codes, what it says."""

from __future__ import annotations

import json

from decoders import write_decoder


def test_bad_input_is_one_line_and_leaves_nothing(run, tmp_path):
    folder = write_decoder(tmp_path / "model")
    out = tmp_path / "out"
    for arguments, message in (
        (("--to", "onnx"), "it is one of transformers, vllm"),
        (("--to", "vllm", "--type", "f16"), "--type goes with --to gguf"),
        (("--to", "gguf", "--blocks-of", "256"), "--blocks-of goes with --to vllm-native"),
        (("--to", "gguf", "--check", "often"), "check is 'often'"),
        (("--to", "gguf", "--tokenizer", tmp_path / "no"), "there is no such folder"),
    ):
        run("export", folder, *arguments, "--out", out).refused(message)
    assert not out.exists()
    to = ("--to", "transformers", "--out")
    run("export", folder, *to, folder / "inside").refused("lies in the checkpoint")
    out.mkdir()
    run("export", folder, *to, out).refused("exists already")
    assert not list(out.iterdir())
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    run("export", folder, *to, tmp_path / "x").refused("only llama, mistral, qwen2, qwen3")


def test_it_says_what_it_did_and_how_to_serve_it(run, tmp_path):
    folder, out = write_decoder(tmp_path / "model", widths=(70, 33)), tmp_path / "out"
    said = run("export", folder, "--to", "vllm", "--out", out, "--check", "tensors")
    assert said.code == 0
    assert f"vllm serve {out} --trust-remote-code --model-impl transformers" in said.out
    assert "tensors read back" in said.out
    again = run("export", folder, "--to", "vllm-native", "--out", tmp_path / "native", "--json")
    found = json.loads(again.out)
    assert found["check"]["passed"] and found["to"] == "vllm-native"

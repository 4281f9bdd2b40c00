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
        result = run("export", folder, *arguments, "--out", out)
        assert result.code == 2 and result.err.count("\n") == 1 and message in result.err
    assert not out.exists()
    inside = run("export", folder, "--to", "transformers", "--out", folder / "inside")
    assert inside.code == 2 and "lies in the checkpoint" in inside.err
    out.mkdir()
    there = run("export", folder, "--to", "transformers", "--out", out)
    assert there.code == 2 and "exists already" in there.err and not list(out.iterdir())
    moe = write_decoder(tmp_path / "other")
    (moe / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    other = run("export", moe, "--to", "transformers", "--out", tmp_path / "x")
    assert other.code == 2 and "only llama, mistral, qwen2, qwen3" in other.err


def test_it_says_what_it_did_and_how_to_serve_it(run, tmp_path):
    folder, out = write_decoder(tmp_path / "model", widths=(70, 33)), tmp_path / "out"
    said = run("export", folder, "--to", "vllm", "--out", out, "--check", "tensors")
    assert said.code == 0
    assert f"vllm serve {out} --trust-remote-code --model-impl transformers" in said.out
    assert "tensors read back" in said.out
    again = run("export", folder, "--to", "vllm-native", "--out", tmp_path / "native", "--json")
    found = json.loads(again.out)
    assert found["check"]["passed"] and found["to"] == "vllm-native"

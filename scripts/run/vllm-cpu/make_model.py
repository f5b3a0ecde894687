#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write a small Llama with random weights, its tokenizer and a LoRA adapter: make_model.py OUT [--layers N] [--hidden N].

Nothing is downloaded: the tokenizer (byte-level BPE, split as Llama 3 splits) is trained on this repository's documents, if they are there. The
adapter is in OUT/lora. The text of answers is nonsense, but the same for the same prompt, and each token of a prompt matters."""
import argparse
import json
import pathlib

import safetensors.torch
import tokenizers
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[3]
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
TEMPLATE = ("{{ bos_token }}{% if tools %}{{ '<|start_header_id|>tools<|end_header_id|>\n\n' }}{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
            "{{ '<|eot_id|>' }}{% endif %}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' }}"
            "{% if m['content'] is string %}{{ m['content'] | trim }}{% else %}{% for p in m['content'] %}{{ p['text'] }}{% endfor %}{% endif %}"
            "{{ '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")


def tokenizer(out, size):
    t = tokenizers.Tokenizer(tokenizers.models.BPE(ignore_merges=True))
    pre = tokenizers.pre_tokenizers
    t.pre_tokenizer = pre.Sequence([pre.Split(tokenizers.Regex(SPLIT), "isolated"), pre.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre.ByteLevel.alphabet(), show_progress=False)
    t.train([str(p) for p in sorted((ROOT / "docs").rglob("*.md"))] or [__file__], trainer)
    t.add_special_tokens(SPECIAL)
    bos = t.token_to_id(SPECIAL[0])
    t.post_processor = tokenizers.processors.TemplateProcessing(single=f"{SPECIAL[0]} $A", pair=f"{SPECIAL[0]} $A $B", special_tokens=[(SPECIAL[0], bos)])
    t.save(str(out / "tokenizer.json"))
    (out / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": SPECIAL[0], "eos_token": SPECIAL[4], "chat_template": TEMPLATE,
        "clean_up_tokenization_spaces": False, "model_max_length": 16384}))
    return bos, t.token_to_id(SPECIAL[4]), (t.get_vocab_size() + 63) // 64 * 64


def model(out, args, bos, eos, vocab):
    torch.manual_seed(args.seed)
    config = transformers.LlamaConfig(
        vocab_size=vocab, hidden_size=args.hidden, intermediate_size=2 * args.hidden, num_hidden_layers=args.layers, num_attention_heads=4,
        num_key_value_heads=2, head_dim=args.hidden // 4, max_position_embeddings=16384, tie_word_embeddings=True, bos_token_id=bos,
        eos_token_id=eos, initializer_range=1.2 / args.hidden ** 0.5)
    made = transformers.LlamaForCausalLM(config)
    with torch.no_grad():  # sharp attention and strong layers: otherwise all answers fall into one rut
        for name, weight in made.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                weight.mul_(3)
            elif "o_proj" in name or "down_proj" in name:
                weight.mul_(4)
    made.to(torch.bfloat16).save_pretrained(out, safe_serialization=True)
    (out / "generation_config.json").write_text(json.dumps({"bos_token_id": bos, "eos_token_id": eos}))


def adapter(out, args):
    out.mkdir(exist_ok=True)
    weights = {}
    for layer in range(args.layers):
        for part, wide in (("q_proj", args.hidden), ("v_proj", args.hidden // 2)):
            name = f"base_model.model.model.layers.{layer}.self_attn.{part}"
            weights[f"{name}.lora_A.weight"] = torch.randn(8, args.hidden) / 4
            weights[f"{name}.lora_B.weight"] = torch.randn(wide, 8) / 4
    safetensors.torch.save_file(weights, str(out / "adapter_model.safetensors"))
    (out / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 8, "lora_alpha": 16, "lora_dropout": 0.0, "bias": "none",
        "target_modules": ["q_proj", "v_proj"], "base_model_name_or_path": "tiny"}))


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("out", type=pathlib.Path)
    ap.add_argument("--layers", type=int, default=2)
    ap.add_argument("--hidden", type=int, default=128)
    ap.add_argument("--vocab", type=int, default=4000)
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    model(args.out, args, *tokenizer(args.out, args.vocab))
    adapter(args.out / "lora", args)


if __name__ == "__main__":
    main()

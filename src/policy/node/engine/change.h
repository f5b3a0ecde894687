/* SPDX-License-Identifier: Apache-2.0 */
/* change: the requests that change what a running engine has in its memory: LoRA adapters, and sleep, in which it gives
 * back the GPU memory of weights and KV cache. Pure.
 *   | kind | routes | read at |
 *   | vllm | /v1/load_lora_adapter, /v1/unload_lora_adapter; exist when VLLM_ALLOW_RUNTIME_LORA_UPDATING is 1 | vLLM 0.33 |
 *   | sglang | /load_lora_adapter, /unload_lora_adapter, with --enable-lora | SGLang 0.5.23 |
 *   | vllm | /sleep, /wake_up; exist when VLLM_SERVER_DEV_MODE is 1, with --enable-sleep-mode | vLLM 0.33 |
 *   | sglang | /release_memory_occupation, /resume_memory_occupation, with --enable-memory-saver | SGLang 0.5.23 |
 *   | others | none | | */
#pragma once
#include "policy/node/engine/engine.h"

enum engine_change { ENGINE_LORA_LOAD, ENGINE_LORA_UNLOAD, ENGINE_SLEEP, ENGINE_WAKE, ENGINE_CHANGES };

/* Return the path of the POST that has an engine of |kind| (ENGINE_* of the configuration) make the change, and
 * append the request's JSON body. |name|: of the adapter; |path|: of its weights, as the engine finds them; both are unused
 * by sleep and wake. NULL: engines of this kind cannot, and nothing is appended. */
const char *engine_change_ask(int kind, enum engine_change what, struct cgn_str name, struct cgn_str path,
	struct cgn_buf *body);

/* Whether an engine's answer, which reports a failure, says that the adapter |name| is as |what| wants it
 * already: it is loaded, or it is not there. An engine without routes for adapters has none of them, and one
 * that cannot sleep is awake. |status|: of the answer. */
bool engine_change_is_so(enum engine_change what, struct cgn_str name, int status, struct cgn_str answer);
/* Whether the answer says that the engine has no route for adapters: a 404 that does not name this one. */
bool engine_change_is_unknown(struct cgn_str name, int status, struct cgn_str answer);

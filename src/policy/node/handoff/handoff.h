/* SPDX-License-Identifier: Apache-2.0 */
/* handoff: how a prompt that one engine computed gets to the engine that answers. Two calls ("legs") make such a
 * request: the prefill leg computes the prompt, the decode leg takes over the result and answers. Each dialect says
 * what the bodies of both legs have besides what the client sent, and what the prefill leg's answer gives to the
 * decode leg. One row of handoff.c per dialect. Pure; any thread; no state.
 *
 *   | dialect  | legs        | prefill leg                | decode leg                       | read at
 *   | store    | in sequence | by the agent (slots)       | by the agent                     | llama.cpp 0.7.0
 *   | nixl     | in sequence | kv_transfer_params         | the same member of leg 1's answer | vLLM 0.32
 *   | p2p      | in sequence | kv_transfer_params         | kv_transfer_params               | vLLM 0.32, documentation
 *   | mooncake | at once     | kv_transfer_params         | kv_transfer_params               | vLLM 0.32, documentation
 *   | sglang   | at once     | bootstrap_host, _port, _room | the same                       | SGLang 0.5.23
 *   | trtllm   | in sequence | disaggregated_params       | those of leg 1's answer          | TensorRT-LLM 1.0,
 *                                                                                            documentation */
#pragma once
#include "base/json/json.h"

enum handoff_kind {
	HANDOFF_NONE, /* The engine gives nothing away and takes nothing over. */
	HANDOFF_STORE,
	HANDOFF_NIXL,
	HANDOFF_P2P,
	HANDOFF_MOONCAKE,
	HANDOFF_SGLANG,
	HANDOFF_TRTLLM,
	HANDOFF_KINDS
};

/* ---- the two ends ---- */

#define HANDOFF_TERMS_MAX  256 /* Bytes. */
#define HANDOFF_HOST_MAX   253
#define HANDOFF_ENGINE_MAX 128 /* Bytes of an engine id. */
#define HANDOFF_RANKS_MAX  64

/* An engine as an end of a hand-off, as its node describes it. Strings are borrowed. */
struct handoff_end {
	enum handoff_kind kind;
	uint16_t port; /* Bootstrap or side channel; 0: the dialect needs none. */
	struct cgn_str host;
	const struct cgn_str *engine_ids; /* Mooncake: one for each data-parallel rank. */
	size_t n_engine_ids;
	/* All that both ends must have in common, as "key=value" words: connector, engine, build, block size, tensor
	 * layout. */
	struct cgn_str terms;
	/* Hash of |kind| and |terms|, never 0 except for HANDOFF_NONE. Engines with equal fingerprints may be a pair;
	 * a pair of engines with different ones is never used. */
	uint64_t fingerprint;
};
uint64_t handoff_fingerprint(enum handoff_kind kind, struct cgn_str terms);
/* Write why |a| and |b| cannot be a pair, as "block=16 and block=32"; an empty text when they are one. |size|
 * is the size of |text|. */
void handoff_differ(const struct handoff_end *a, const struct handoff_end *b, char *text, size_t size);
/* Append "key=value" to |terms|; a value that is empty is written as "-". White space and control characters of
 * |value| become '_'. */
void handoff_term_add(struct cgn_buf *terms, const char *key, struct cgn_str value);

/* ---- the dialects ---- */

enum handoff_order {
	HANDOFF_IN_SEQUENCE, /* The decode leg is sent when the prefill leg has ended. */
	HANDOFF_AT_ONCE,     /* Both legs are sent at the same time; the engines wait for each other. */
};
enum handoff_leg { HANDOFF_PREFILL, HANDOFF_DECODE };

/* A request on its way through two engines. */
struct handoff_job {
	struct cgn_str path;  /* Path of the request; its query does not matter. */
	struct json_val body; /* The client's, parsed. */
	struct cgn_str
		model; /* JSON string: the model's name at the leg's engine; p NULL: as the client wrote it. */
	const struct handoff_end *prefill; /* The prefill leg's engine. */
	struct cgn_str id;     /* Unique name of the request, without characters that JSON escapes. */
	uint64_t number;       /* A random number of its own for each try, at most 2^63 - 2^20. */
	uint64_t now_ms;       /* Unix time. */
	unsigned rank;         /* Data-parallel rank of the prefill leg; below n_engine_ids, or 0. */
	struct cgn_str params; /* Decode leg: result of handoff_params_read. */
};

struct handoff_ops {
	enum handoff_kind kind;
	const char *name; /* As in the node's description. */
	enum handoff_order order;
	bool edits;   /* The router edits the bodies; otherwise the agents do. */
	bool several; /* A request with several prompts can be handed over. */
	bool answers; /* A request for several answers to a prompt can be. */
	/* A node of role prefill or decode can answer a whole request by itself. */
	bool alone;
	uint16_t port; /* Default of the bootstrap port; 0: none. */
	/* Path at the engine whose answer, an object, has its build as "version"; NULL: none. */
	const char *version_path;
	bool ranks; /* The bootstrap server lists engine ids by rank (handoff_ranks_read). */
	/* Time after its end that a prefill leg's result is kept at least, in milliseconds; 0: not known. */
	uint32_t lease_ms;
	const char *member; /* Member of the prefill leg's answer that the decode leg needs; NULL: none. */
	bool in_choice;     /* |member| is in the answer's first choice. */
	/* The prefill leg's body asks for one token, and not for what belongs to more of them. */
	bool one_token;
	void (*put)(const struct handoff_job *job, enum handoff_leg leg, struct json_out *o);
};
const struct handoff_ops *handoff_ops_of(
	enum handoff_kind kind);                           /* Never NULL; HANDOFF_NONE has a row too. */
enum handoff_kind handoff_kind_named(struct cgn_str name); /* HANDOFF_NONE: unknown, or "none". */

/* Return why the request can't be handed over in this dialect, as a label ("several", "route", "prompt_logprobs");
 * NULL: it can. |several|: it asks for several answers, or has several prompts. */
const char *handoff_refusal(const struct handoff_ops *ops, struct cgn_str path, struct json_val body,
	bool several);

/* Write the body of one leg: the client's members, less those that the leg must not have, and the dialect's. Errors
 * are the buffer's. Only for dialects that edit. */
void handoff_body(const struct handoff_job *job, enum handoff_leg leg, struct cgn_buf *out);
/* Read the answer of a Mooncake bootstrap server to GET HANDOFF_RANKS_PATH: {"0": {"engine_id": ...}, "1":
 * ...}. |out| has room for HANDOFF_RANKS_MAX ids, which are in |a|. CGN_BAD_GATEWAY: another answer, or ranks
 * are missing. CGN_NO_MEMORY. */
#define HANDOFF_RANKS_PATH "/query"
CGN_RC handoff_ranks_read(struct cgn_str answer, struct cgn_arena *a, const char **out, size_t *n,
	struct cgn_err *err);
/* Append the members that |answer|, a prefill leg's, gives to the decode leg; nothing for a dialect without
 * |member|. CGN_BAD_GATEWAY: the answer is not JSON, or the member is missing or not of the dialect.
 * CGN_NO_MEMORY. */
CGN_RC handoff_params_read(enum handoff_kind kind, struct cgn_str answer, struct cgn_buf *params,
	struct cgn_err *err);

/* SPDX-License-Identifier: Apache-2.0 */
/* handoff: the members of a request about its hand-off, in the dialect of --handoff, and those of a prefill
 * leg's answer. As strict as the engines: fields that make no sense are refused, and missing ones are not
 * guessed. Pure. */
#pragma once
#include "sim/flags/flags.h"
#include "sim/request/fields.h"

#define SIM_HANDOFF_ID_MAX 127
enum sim_handoff_what {
	SIM_HANDOFF_NOTHING,
	SIM_HANDOFF_GIVES, /* The prefill leg: another engine will fetch the prompt. */
	SIM_HANDOFF_TAKES, /* The decode leg. */
};
struct sim_handoff_ask {
	enum sim_handoff_what what;
	char id[SIM_HANDOFF_ID_MAX + 1]; /* Empty for GIVES: the engine chooses it. */
	/* For TAKES: the engine that gives. |engine| is empty where the dialect does not name it. */
	char host[HANDOFF_HOST_MAX + 1], engine[HANDOFF_ENGINE_MAX + 1];
	unsigned port;
};
/* False with a 400 in |no|: the parameters are not the dialect's, or the role needs some. */
bool sim_handoff_ask_read(const struct sim_cfg *cfg, const struct sim_fields *root,
	struct sim_handoff_ask *out, struct sim_refusal *no);
/* The engine that gives, as it describes itself. */
struct sim_handoff_self {
	const char *host, *engine;
	unsigned port;
	uint32_t blocks; /* Blocks of the prompt. */
};
/* Append the member's value for the prefill leg's answer; nothing where the dialect's answer has none. */
void sim_handoff_params_put(const struct sim_cfg *cfg, const struct sim_handoff_ask *ask,
	const struct sim_handoff_self *self, struct cgn_buf *out);

/* SPDX-License-Identifier: Apache-2.0 */
/* vllm: the hand-offs of vLLM's connectors, which all travel in kv_transfer_params. */
#include <stdio.h>

#include "policy/node/handoff/handoff_priv.h"

static void params_open(struct json_out *o)
{
	json_key_open(o, "kv_transfer_params", '{');
}

static void key_null(struct json_out *o, const char *key)
{
	json_key(o, key);
	json_put_null(o);
}

/* NixlConnector: the prefill engine names itself and its blocks, and keeps these for the lease. */
static void nixl_put(const struct handoff_job *job, enum handoff_leg leg, struct json_out *o)
{
	if (leg == HANDOFF_DECODE) {
		json_key(o, "kv_transfer_params");
		json_put_raw(o, job->params);
		return;
	}
	params_open(o);
	json_key_bool(o, "do_remote_decode", true);
	json_key_bool(o, "do_remote_prefill", false);
	key_null(o, "remote_engine_id");
	key_null(o, "remote_block_ids");
	key_null(o, "remote_host");
	key_null(o, "remote_port");
	json_close(o, '}');
}

/* MooncakeConnector: the router names the transfer, and the decode engine asks the prefill engine's bootstrap server. */
static void mooncake_put(const struct handoff_job *job, enum handoff_leg leg, struct json_out *o)
{
	const struct handoff_end *p = job->prefill;
	char text[HANDOFF_HOST_MAX + 24];
	params_open(o);
	json_key_bool(o, "do_remote_decode", leg == HANDOFF_PREFILL);
	json_key_bool(o, "do_remote_prefill", leg == HANDOFF_DECODE);
	(void)snprintf(text, sizeof text, "xfer-%016llx", (unsigned long long)job->number);
	json_key_z(o, "transfer_id", text);
	if (leg == HANDOFF_DECODE) {
		json_key_str(o, "remote_engine_id",
			job->rank < p->n_engine_ids ? p->engine_ids[job->rank] : CGN_STR(""));
		bool v6 = memchr(p->host.p, ':', p->host.n) != NULL;
		(void)snprintf(text, sizeof text, v6 ? "http://[%.*s]:%u" : "http://%.*s:%u",
			CGN_STR_ARG(p->host), p->port);
		json_key_z(o, "remote_bootstrap_addr", text);
	}
	json_close(o, '}');
}

/* OffloadingConnector with a p2p tier: rank r has its side channel at the port + r. */
static void p2p_put(const struct handoff_job *job, enum handoff_leg leg, struct json_out *o)
{
	char id[24];
	(void)snprintf(id, sizeof id, "%016llx", (unsigned long long)job->number);
	params_open(o);
	json_key_open(o, leg == HANDOFF_PREFILL ? "remote_decoder" : "remote_prefiller", '{');
	json_key_z(o, "kv_request_id", id);
	if (leg == HANDOFF_DECODE) {
		json_key_str(o, "remote_host", job->prefill->host);
		json_key_u64(o, "remote_port", (uint64_t)job->prefill->port + job->rank);
	}
	json_close(o, '}');
	json_close(o, '}');
}

const struct handoff_ops handoff_nixl = {
	.kind = HANDOFF_NIXL,
	.name = "nixl",
	.order = HANDOFF_IN_SEQUENCE,
	.edits = true,
	.alone = true,
	.version_path = "/version",
	.lease_ms = 30000, /* kv_lease_duration */
	.member = "kv_transfer_params",
	.one_token = true,
	.put = nixl_put,
};

const struct handoff_ops handoff_p2p = {
	.kind = HANDOFF_P2P,
	.name = "p2p",
	.order = HANDOFF_IN_SEQUENCE,
	.edits = true,
	.alone = true,
	.version_path = "/version",
	.port = 5710,
	.lease_ms = 60000, /* unbound_store_timeout_s */
	.one_token = true,
	.put = p2p_put,
};

const struct handoff_ops handoff_mooncake = {
	.kind = HANDOFF_MOONCAKE,
	.name = "mooncake",
	.order = HANDOFF_AT_ONCE,
	.edits = true,
	.alone = true,
	.version_path = "/version",
	.port = 8998,
	.ranks = true,
	.one_token = true,
	.put = mooncake_put,
};

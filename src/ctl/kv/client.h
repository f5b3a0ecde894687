/* SPDX-License-Identifier: Apache-2.0 */
/* kv_client: a block store's service Kv, called and waited for. */
#pragma once
#include <protobuf-c/protobuf-c.h>

#include "cognitora/v1/kv.pb-c.h"
#include "ctl/ctl.h"
#include "policy/block/block.h"

struct kv_ctl;
/* Flags --uds, --addr, --ca, --cert, --key, --timeout; then $CGN_KV; then the Unix socket where a node has
 * its store. */
CGN_RC kv_ctl_open(const struct ctl_args *a, struct kv_ctl **out, struct cgn_err *err);
void kv_ctl_close(struct kv_ctl **take);

struct kv_ctl_call {
	const char *method;
	const ProtobufCMessageDescriptor *answer;
	const void *request; /* any generated struct; NULL: |next| gives them */
	/* The next request, packed into |out|; false: that was all. */
	bool (*next)(void *user, struct cgn_buf *out);
	void (*on_answer)(void *user, const void *message); /* borrowed */
	/* after an answer: end the call as if it were done. NULL: no */
	bool (*enough)(void *user);
	void *user;
	bool forever; /* no --timeout holds */
};
/* Returns when the call ended. */
CGN_RC kv_ctl_run(struct kv_ctl *k, const struct kv_ctl_call *call, struct cgn_err *err);

/* A key of the command line: HEX64, HEX64:SEGMENT, or a name, as Redis clients give it. */
struct kv_ctl_key {
	struct block_key key;
	struct cgn_str name; /* empty: it was a digest */
	Cognitora__V1__KvKey m;
};
void kv_ctl_key(const char *word, struct kv_ctl_key *out);
void kv_ctl_key_text(const Cognitora__V1__KvKey *k, struct cgn_buf *out); /* as kv_ctl_key reads it */
const char *kv_ctl_tiers(uint32_t tiers);                                 /* "ram,ssd" */

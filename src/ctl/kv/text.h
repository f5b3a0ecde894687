/* SPDX-License-Identifier: Apache-2.0 */
/* text: keys and tiers of blocks as text. */
/* kv, the room: the verbs of block stores. */
#pragma once
#include "base/core/buf.h"
#include "cognitora/v1/kv.pb-c.h"
#include "policy/kv/block/block.h"

/* A key of the command line: HEX64, HEX64:SEGMENT, or a name, as Redis clients give it. */
struct kv_ctl_key {
	struct block_key key;
	struct cgn_str name; /* Empty when the key is a digest. */
	Cognitora__V1__KvKey m;
};
/* Parse |word|, which |out| borrows. */
void kv_ctl_key(const char *word, struct kv_ctl_key *out);
/* Append the key in the form that kv_ctl_key parses. */
void kv_ctl_key_text(const Cognitora__V1__KvKey *k, struct cgn_buf *out);
/* Return the names of a set of tiers, as "ram,ssd". */
const char *kv_ctl_tiers(uint32_t tiers);

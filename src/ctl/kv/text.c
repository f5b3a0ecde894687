/* SPDX-License-Identifier: Apache-2.0 */
#include "ctl/kv/text.h"

#include "base/codec/codec.h"
#include "policy/kv/block/tier.h"
#include "policy/kv/respcmd/respcmd.h"

void kv_ctl_key(const char *word, struct kv_ctl_key *out)
{
	struct cgn_str text = cgn_str_of(word);
	bool is_digest = respcmd_key(text, &out->key.digest, &out->key.segment);
	out->name = is_digest ? (struct cgn_str){NULL, 0} : text;
	cognitora__v1__kv_key__init(&out->m);
	out->m.digest = (ProtobufCBinaryData){DIGEST_BYTES, out->key.digest.b};
	out->m.segment = out->key.segment;
}

void kv_ctl_key_text(const Cognitora__V1__KvKey *k, struct cgn_buf *out)
{
	if (k == NULL)
		return;
	hex_put(out, (struct cgn_str){(const char *)k->digest.data, k->digest.len});
	if (k->segment != 0)
		cgn_buf_fmt(out, ":%u", k->segment);
}

const char *kv_ctl_tiers(uint32_t tiers)
{
	static const char *const texts[] = {"", "ram", "ssd", "ram,ssd", "remote", "ram,remote", "ssd,remote",
		"ram,ssd,remote"};
	return texts[tiers >> BLOCK_RAM & 7];
}

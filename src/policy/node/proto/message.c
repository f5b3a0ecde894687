/* SPDX-License-Identifier: Apache-2.0 */
/* message: the event of Agent.Watch, whose lists of digests are written directly from the caller's arrays. */
#include "policy/node/proto/proto_priv.h"

enum event_field { E_SEQ = 1, E_NODE, E_LOAD, E_RESIDENCY, E_SENT_UNIX_MS, E_CHECK, E_BEAT_MS, E_ENERGY };
enum residency_field { R_RESET = 1, R_RANGES, R_BLOCKS, R_TIERS, R_SOURCE, R_STALE_MS };
enum check_field { C_SUMS = 1, C_BLOCKS };

static void put_message(struct cgn_buf *out, unsigned field, const ProtobufCMessage *m)
{
	wire_put_head(out, field, protobuf_c_message_get_packed_size(m));
	pb_pack(m, out);
}

static void put_residency(struct cgn_buf *out, const struct proto_residency *r)
{
	struct cgn_str blocks = {NULL, r->n_blocks * sizeof *r->blocks};
	struct cgn_str tiers = {(const char *)r->tiers, r->tiers != NULL ? r->n_blocks : 0};
	wire_put_head(out, E_RESIDENCY,
		wire_u64_size(R_RESET, r->reset) + wire_u32s_size(R_RANGES, r->ranges, r->n_ranges) +
			wire_str_size(R_BLOCKS, blocks) + wire_str_size(R_TIERS, tiers) +
			wire_u64_size(R_SOURCE, r->source) + wire_u64_size(R_STALE_MS, r->stale_ms));
	wire_put_u64(out, R_RESET, r->reset);
	wire_put_u32s(out, R_RANGES, r->ranges, r->n_ranges);
	wire_put_fixed64s(out, R_BLOCKS, r->blocks, r->n_blocks);
	wire_put_str(out, R_TIERS, tiers);
	wire_put_u64(out, R_SOURCE, r->source);
	wire_put_u64(out, R_STALE_MS, r->stale_ms);
}

static void put_check(struct cgn_buf *out, const struct proto_check *c)
{
	struct cgn_str sums = {NULL, BLOCK_RANGES * sizeof *c->sums};
	wire_put_head(out, E_CHECK, wire_str_size(C_SUMS, sums) + wire_u64_size(C_BLOCKS, c->blocks));
	wire_put_fixed64s(out, C_SUMS, c->sums, BLOCK_RANGES);
	wire_put_u64(out, C_BLOCKS, c->blocks);
}

void proto_watch_event(const struct proto_event *e, struct cgn_buf *out)
{
	wire_put_u64(out, E_SEQ, e->seq);
	if (e->node != NULL)
		put_message(out, E_NODE, &e->node->base);
	if (e->load != NULL)
		put_message(out, E_LOAD, &e->load->base);
	if (e->residency != NULL)
		put_residency(out, e->residency);
	wire_put_u64(out, E_SENT_UNIX_MS, e->sent_unix_ms);
	if (e->check != NULL)
		put_check(out, e->check);
	wire_put_u64(out, E_BEAT_MS, e->beat_ms);
	if (e->energy != NULL)
		put_message(out, E_ENERGY, &e->energy->base);
}

static bool tiers_known(const uint8_t *tiers, size_t n)
{
	unsigned seen = 0;
	for (size_t i = 0; i < n; i++)
		seen |= tiers[i];
	return (seen & ~BLOCK_TIER_MASK) == 0;
}

CGN_RC proto_residency_check(const Cognitora__V1__Residency *r, const Cognitora__V1__ResidencyCheck *check,
	struct cgn_err *err)
{
	if (check != NULL && check->n_sums != BLOCK_RANGES)
		return CGN_FAIL(err, INVALID, "ResidencyCheck.sums: %zu sums, %d are needed", check->n_sums,
			BLOCK_RANGES);
	if (r == NULL)
		return CGN_OK;
	for (size_t i = 0; i < r->n_ranges; i++)
		if (r->ranges[i] >= BLOCK_RANGES)
			return CGN_FAIL(err, INVALID, "Residency.ranges: there is no range %u", r->ranges[i]);
	if (r->tiers.len != 0 && r->tiers.len != r->n_blocks)
		return CGN_FAIL(err, INVALID, "Residency.tiers: %zu masks for %zu blocks", r->tiers.len,
			r->n_blocks);
	if (!tiers_known(r->tiers.data, r->tiers.len))
		return CGN_FAIL(err, INVALID, "Residency.tiers: a mask with a tier that does not exist");
	return CGN_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* message: Agent.Watch's event, whose lists of digests are written straight from the caller's arrays. */
#include "policy/proto/proto_priv.h"

enum event_field { E_SEQ = 1, E_NODE, E_LOAD, E_RESIDENCY, E_SENT_UNIX_MS };
enum residency_field { R_RESET = 1, R_STORED, R_REMOVED, R_SOURCE };

static void put_message(struct cgn_buf *out, unsigned field, const ProtobufCMessage *m)
{
	wire_put_head(out, field, protobuf_c_message_get_packed_size(m));
	pb_pack(m, out);
}

static void put_residency(struct cgn_buf *out, const struct proto_residency *r)
{
	struct cgn_str stored = {NULL, r->n_stored * sizeof *r->stored},
		       removed = {NULL, r->n_removed * sizeof *r->removed};
	struct cgn_str source = cgn_str_of(r->source);
	wire_put_head(out, E_RESIDENCY,
		wire_u64_size(R_RESET, r->reset) + wire_str_size(R_STORED, stored) +
			wire_str_size(R_REMOVED, removed) + wire_str_size(R_SOURCE, source));
	wire_put_u64(out, R_RESET, r->reset);
	wire_put_fixed64s(out, R_STORED, r->stored, r->n_stored);
	wire_put_fixed64s(out, R_REMOVED, r->removed, r->n_removed);
	wire_put_str(out, R_SOURCE, source);
}

void proto_watch_event(uint64_t seq, const Cognitora__V1__Node *node, const Cognitora__V1__Load *load,
	const struct proto_residency *residency, uint64_t sent_unix_ms, struct cgn_buf *out)
{
	wire_put_u64(out, E_SEQ, seq);
	if (node != NULL)
		put_message(out, E_NODE, &node->base);
	if (load != NULL)
		put_message(out, E_LOAD, &load->base);
	if (residency != NULL)
		put_residency(out, residency);
	wire_put_u64(out, E_SENT_UNIX_MS, sent_unix_ms);
}

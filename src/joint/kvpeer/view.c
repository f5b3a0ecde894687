/* SPDX-License-Identifier: Apache-2.0 */
/* view: the state of all peers, for operators. */
#include "base/json/json.h"
#include "joint/kvpeer/kvpeer_priv.h"

static const char *row_state_text(const struct kvpeer_peer *p)
{
	static const char *const names[] = {[PEER_WAITING] = "down",
		[PEER_OPENING] = "connecting",
		[PEER_GREETING] = "connecting",
		[PEER_READY] = "ready",
		[PEER_LEFT_ALONE] = "left alone"};
	return p->state == PEER_READY && !p->synced ? "reading" : names[p->state];
}

size_t kvpeer_count(const struct kvpeer *kp, size_t *ready)
{
	size_t n = 0;
	CGN_LIVE(kp, KVPEER_TAG);
	*ready = 0;
	cgn_list_each (it, &kp->peers) {
		const struct kvpeer_peer *p = CGN_CONTAINER(it, struct kvpeer_peer, link);
		n += p->state != PEER_LEFT_ALONE ? 1 : 0;
		*ready += p->state == PEER_READY ? 1 : 0;
	}
	return n;
}

void kvpeer_overview(const struct kvpeer *kp, struct kvpeer_overview *out)
{
	struct kvindex_stats st;
	CGN_LIVE(kp, KVPEER_TAG);
	kvindex_stats(kp->index, &st);
	*out = (struct kvpeer_overview){.node = kp->node,
		.rack = kp->rack,
		.region = kp->region,
		.port = quic_endpoint_port(kp->ep),
		.guests = kp->n_guests,
		.serving = kp->egress.streams,
		.fetching = kp->n_gets,
		.owed_bytes = kp->egress.promised,
		.index_blocks = st.blocks,
		.index_bytes = st.bytes,
		.index_max_bytes = st.max_bytes,
		.quic = quic_endpoint_stats(kp->ep)};
	quic_endpoint_refusal(kp->ep, &out->refusal, &out->refused_at);
}

/* A peer that is being dialled again shows why the last attempt failed. */
static const char *row_why_text(const struct kvpeer_peer *p)
{
	return p->state != PEER_READY && p->why.code != CGN_FINE ? p->why.msg : "";
}

static struct kvpeer_row row_of(const struct kvpeer_peer *p)
{
	struct kvpeer_row r = {.id = p->id,
		.name = p->name != NULL ? p->name : "",
		.certificate = p->conn != NULL ? quic_conn_peer_name(p->conn) : CGN_STR(""),
		.address = p->address,
		.rack = p->rack,
		.region = p->region,
		.distance = kvfetch_distance_text(p->distance),
		.state = row_state_text(p),
		.why = row_why_text(p),
		.blocks = p->index_id != NO_INDEX_ID ? kvindex_count(p->kp->index, p->index_id) : 0,
		.rtt_us = p->conn != NULL ? quic_conn_rtt(p->conn) / CGN_USEC : 0,
		.first_byte_us = (uint64_t)(p->path.first_ms * 1000),
		.bytes_per_second = (uint64_t)(p->path.bytes_per_ms * 1000),
		.fetched = p->fetched,
		.fetched_bytes = p->fetched_bytes,
		.missed = p->missed,
		.busy = p->refused,
		.failed = p->failed,
		.corrupt = p->corrupt,
		.served = p->served,
		.served_bytes = p->served_bytes};
	cgn_list_each (it, &p->kp->guests) {
		const struct kvpeer_guest *g = CGN_CONTAINER(it, struct kvpeer_guest, link);
		if (p->name == NULL || g->name != p->name)
			continue;
		r.served += g->served;
		r.served_bytes += g->served_bytes;
	}
	return r;
}

void kvpeer_each(const struct kvpeer *kp, kvpeer_row_fn *fn, void *user)
{
	CGN_LIVE(kp, KVPEER_TAG);
	cgn_list_each (it, &kp->peers) {
		const struct kvpeer_row r = row_of(CGN_CONTAINER(it, struct kvpeer_peer, link));
		fn(user, &r);
	}
}

static void row_describe(void *user, const struct kvpeer_row *r)
{
	struct json_out *o = user;
	json_open(o, '{');
	json_key_z(o, "node", r->id);
	json_key_z(o, "name", r->name);
	json_key_str(o, "certificate", r->certificate);
	json_key_z(o, "address", r->address);
	json_key_z(o, "state", r->state);
	if (r->why[0] != '\0')
		json_key_z(o, "why", r->why);
	json_key_z(o, "rack", r->rack);
	json_key_z(o, "region", r->region);
	json_key_z(o, "distance", r->distance);
	json_key_u64(o, "blocks", r->blocks);
	json_key_u64(o, "rtt_us", r->rtt_us);
	json_key_u64(o, "first_byte_us", r->first_byte_us);
	json_key_u64(o, "bytes_per_second", r->bytes_per_second);
	json_key_u64(o, "fetched", r->fetched);
	json_key_u64(o, "fetched_bytes", r->fetched_bytes);
	json_key_u64(o, "missed", r->missed);
	json_key_u64(o, "busy", r->busy);
	json_key_u64(o, "failed", r->failed);
	json_key_u64(o, "corrupt", r->corrupt);
	json_key_u64(o, "served", r->served);
	json_key_u64(o, "served_bytes", r->served_bytes);
	json_close(o, '}');
}

void kvpeer_describe(const struct kvpeer *kp, struct json_out *o)
{
	struct kvpeer_overview v;
	kvpeer_overview(kp, &v);
	json_open(o, '{');
	json_key_z(o, "node", v.node);
	json_key_z(o, "rack", v.rack);
	json_key_z(o, "region", v.region);
	json_key_u64(o, "port", v.port);
	json_key_u64(o, "guests", v.guests);
	json_key_u64(o, "serving", v.serving);
	json_key_u64(o, "owed_bytes", v.owed_bytes);
	json_key_u64(o, "fetching", v.fetching);
	json_key_u64(o, "index_blocks", v.index_blocks);
	json_key_u64(o, "index_bytes", v.index_bytes);
	json_key_u64(o, "index_max_bytes", v.index_max_bytes);
	json_key_u64(o, "handshakes_failed", v.quic.handshakes_failed);
	if (v.refusal.code != CGN_FINE)
		json_key_z(o, "last_refusal", v.refusal.msg);
	json_key_open(o, "peers", '[');
	kvpeer_each(kp, row_describe, o);
	json_close(o, ']');
	json_close(o, '}');
}

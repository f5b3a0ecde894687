/* SPDX-License-Identifier: Apache-2.0 */
/* view: the state of all peers, for operators. */
#include "base/pb/pb_json.h"
#include "joint/kv/kvpeer/kvpeer_priv.h"

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
		.port = quic_endpoint_port(kp->site[KVPEER_HERE].ep),
		.guests = kp->n_guests,
		.serving = kp->egress.streams,
		.fetching = kp->n_gets,
		.owed_bytes = kp->egress.promised,
		.index_blocks = st.blocks,
		.index_bytes = st.bytes,
		.index_max_bytes = st.max_bytes,
		.quic = quic_endpoint_stats(kp->site[KVPEER_HERE].ep)};
	quic_endpoint_refusal(kp->site[KVPEER_HERE].ep, &out->refusal, &out->refused_at);
}

/* A peer that is being dialled again shows why the last attempt failed. */
static const char *row_why_text(const struct kvpeer_peer *p)
{
	return p->state != PEER_READY && p->why.code != CGN_FINE ? p->why.msg : "";
}

/* Fill |m| from the peer; |certificate| receives the text of that field. */
static void row_fill(const struct kvpeer_peer *p, char certificate[KVPEER_CERTIFICATE],
	Cognitora__V1__KvPeer *m)
{
	(void)cgn_str_copyz(certificate, KVPEER_CERTIFICATE,
		p->conn != NULL ? quic_conn_peer_name(p->conn) : CGN_STR(""));
	*m = (Cognitora__V1__KvPeer){.base = PROTOBUF_C_MESSAGE_INIT(&cognitora__v1__kv_peer__descriptor),
		.id = pb_text(p->id),
		.name = pb_text(p->name != NULL ? p->name : ""),
		.certificate = certificate,
		.address = pb_text(p->address),
		.site = pb_text(p->site->name != NULL ? p->site->name : ""),
		.rack = pb_text(p->rack),
		.region = pb_text(p->region),
		.distance = pb_text(kvfetch_distance_text(p->distance)),
		.state = pb_text(row_state_text(p)),
		.why = pb_text(row_why_text(p)),
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
		if (p->name == NULL || g->name != p->name || g->site != p->site)
			continue;
		m->served += g->served;
		m->served_bytes += g->served_bytes;
	}
}

void kvpeer_each(const struct kvpeer *kp, kvpeer_row_fn *fn, void *user)
{
	CGN_LIVE(kp, KVPEER_TAG);
	cgn_list_each (it, &kp->peers) {
		char certificate[KVPEER_CERTIFICATE];
		Cognitora__V1__KvPeer row;
		row_fill(CGN_CONTAINER(it, struct kvpeer_peer, link), certificate, &row);
		fn(user, &row);
	}
}

static void row_describe(void *user, const Cognitora__V1__KvPeer *row)
{
	struct json_out *o = user;
	json_open(o, '{');
	pb_json_members(o, row, "node=id name certificate address site state");
	if (row->why[0] != '\0')
		json_key_z(o, "why", row->why);
	pb_json_members(o, row,
		"rack region distance blocks rtt_us first_byte_us bytes_per_second fetched fetched_bytes missed busy failed corrupt served served_bytes");
	json_close(o, '}');
}

static const char *site_state_text(const struct kvpeer_site_view *v)
{
	if (!v->takes)
		return "closed";
	return v->ready > 0 || v->guests > 0 ? "open" : "down";
}

void kvpeer_each_site(const struct kvpeer *kp, kvpeer_site_fn *fn, void *user)
{
	for (size_t i = 0; i < kvpeer_sites(kp); i++) {
		struct kvpeer_site_view v;
		kvpeer_site(kp, i, &v);
		const bool refused = v.refusal.code != CGN_FINE;
		const Cognitora__V1__KvSite row = {.base = PROTOBUF_C_MESSAGE_INIT(
							   &cognitora__v1__kv_site__descriptor),
			.name = pb_text(v.name),
			.state = pb_text(site_state_text(&v)),
			.port = v.port,
			.peers = v.peers,
			.ready = v.ready,
			.guests = v.guests,
			.bytes_in = v.bytes_in,
			.bytes_out = v.bytes_out,
			.withheld_no_tenant = v.withheld[KVSITE_NO_TENANT],
			.withheld_tenant = v.withheld[KVSITE_TENANT],
			.withheld_model = v.withheld[KVSITE_MODEL],
			.handshakes_failed = v.quic.handshakes_failed,
			.last_refusal = pb_text(refused ? v.refusal.msg : ""),
			.last_refusal_ms = refused ? cgn_since(cgn_clock_now(), v.refused_at) / CGN_MSEC : 0};
		fn(user, &row);
	}
}

static void site_describe(void *user, const Cognitora__V1__KvSite *row)
{
	pb_json_select(user, row,
		"name state port peers ready guests bytes_in bytes_out withheld_no_tenant withheld_tenant withheld_model handshakes_failed last_refusal");
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
	json_key_open(o, "sites", '[');
	kvpeer_each_site(kp, site_describe, o);
	json_close(o, ']');
	json_close(o, '}');
}

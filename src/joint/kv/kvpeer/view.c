/* SPDX-License-Identifier: Apache-2.0 */
/* view: the state of all peers, for operators. */
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

static void row_fill(const struct kvpeer_peer *p, struct pb_tree *t, Cognitora__V1__KvPeer *to)
{
	to->id = pb_text(p->id);
	to->name = pb_text(p->name != NULL ? p->name : "");
	to->certificate = pb_tree_text(t, p->conn != NULL ? quic_conn_peer_name(p->conn) : CGN_STR(""));
	to->address = pb_text(p->address);
	to->site = pb_text(p->site->name != NULL ? p->site->name : "");
	to->rack = pb_text(p->rack);
	to->region = pb_text(p->region);
	to->distance = pb_text(kvfetch_distance_text(p->distance));
	to->state = pb_text(row_state_text(p));
	to->why = pb_text(row_why_text(p));
	to->blocks = p->index_id != NO_INDEX_ID ? kvindex_count(p->kp->index, p->index_id) : 0;
	to->rtt_us = p->conn != NULL ? quic_conn_rtt(p->conn) / CGN_USEC : 0;
	to->first_byte_us = (uint64_t)(p->path.first_ms * 1000);
	to->bytes_per_second = (uint64_t)(p->path.bytes_per_ms * 1000);
	to->fetched = p->fetched;
	to->fetched_bytes = p->fetched_bytes;
	to->missed = p->missed;
	to->busy = p->refused;
	to->failed = p->failed;
	to->corrupt = p->corrupt;
	to->served = p->served;
	to->served_bytes = p->served_bytes;
	cgn_list_each (it, &p->kp->guests) {
		const struct kvpeer_guest *g = CGN_CONTAINER(it, struct kvpeer_guest, link);
		if (p->name == NULL || g->name != p->name || g->site != p->site)
			continue;
		to->served += g->served;
		to->served_bytes += g->served_bytes;
	}
}

static const char *site_state_text(const struct kvpeer_site_view *v)
{
	if (!v->takes)
		return "closed";
	return v->ready > 0 || v->guests > 0 ? "open" : "down";
}

static void site_fill(const struct kvpeer *kp, size_t i, struct pb_tree *t, Cognitora__V1__KvSite *to)
{
	struct kvpeer_site_view v;
	kvpeer_site(kp, i, &v);
	to->name = pb_text(v.name);
	to->state = pb_text(site_state_text(&v));
	to->port = v.port;
	to->peers = v.peers;
	to->ready = v.ready;
	to->guests = v.guests;
	to->bytes_in = v.bytes_in;
	to->bytes_out = v.bytes_out;
	to->withheld_no_tenant = v.withheld[KVSITE_NO_TENANT];
	to->withheld_tenant = v.withheld[KVSITE_TENANT];
	to->withheld_model = v.withheld[KVSITE_MODEL];
	to->handshakes_failed = v.quic.handshakes_failed;
	if (v.refusal.code == CGN_FINE)
		return;
	to->last_refusal = pb_tree_text(t, cgn_str_of(v.refusal.msg));
	to->last_refusal_ms = cgn_since(cgn_clock_now(), v.refused_at) / CGN_MSEC;
}

void kvpeer_fill(const struct kvpeer *kp, struct pb_tree *t, Cognitora__V1__KvPeersResponse *to)
{
	struct kvpeer_overview v;
	kvpeer_overview(kp, &v);
	to->node_id = pb_text(v.node);
	to->rack = pb_text(v.rack);
	to->region = pb_text(v.region);
	to->port = v.port;
	to->guests = v.guests;
	to->serving = v.serving;
	to->owed_bytes = v.owed_bytes;
	to->fetching = v.fetching;
	to->index_blocks = v.index_blocks;
	to->index_bytes = v.index_bytes;
	to->index_max_bytes = v.index_max_bytes;
	to->handshakes_failed = v.quic.handshakes_failed;
	if (v.refusal.code != CGN_FINE) {
		to->last_refusal = pb_tree_text(t, cgn_str_of(v.refusal.msg));
		to->last_refusal_ms = cgn_since(cgn_clock_now(), v.refused_at) / CGN_MSEC;
	}
	cgn_list_each (it, &kp->peers)
		row_fill(CGN_CONTAINER(it, struct kvpeer_peer, link), t, PB_ADD(t, to, peers, kv_peer));
	for (size_t i = 0; i < kvpeer_sites(kp); i++)
		site_fill(kp, i, t, PB_ADD(t, to, sites, kv_site));
}

/* SPDX-License-Identifier: Apache-2.0 */
/* peers: the other nodes' block stores as known to one store. */
#include "base/pb/pb.h"
#include "base/pb/pb_json.h"
#include "ctl/ctl.h"
#include "ctl/kv/text.h"
#include "joint/ctl/client/client.h"

typedef Cognitora__V1__KvPeersResponse response;
typedef Cognitora__V1__KvPeer peer;

/* ---- JSON ---- */
#define SITE_MEMBERS                                                                                \
	"name state port peers ready guests bytes_in bytes_out withheld_no_tenant withheld_tenant " \
	"withheld_model handshakes_failed last_refusal last_refusal_ms"

static void peers_json(const response *rs, struct cgn_buf *out)
{
	struct json_out o = json_out_to(out);
	pb_json_select(&o, rs,
		"node=node_id rack region quic_address guests serving owed_bytes fetching index_blocks index_bytes "
		"index_max_bytes handshakes_failed last_refusal last_refusal_ms peers{id name certificate address "
		"state why rack region distance blocks rtt_us first_byte_us bytes_per_second fetched fetched_bytes "
		"missed busy failed corrupt served served_bytes site} sites{" SITE_MEMBERS "}");
	cgn_buf_char(out, '\n');
}

/* ---- text ---- */
static double in_mib(uint64_t bytes)
{
	return (double)bytes / (1024 * 1024);
}

static const char *or_dash(const char *z)
{
	return z[0] != '\0' ? ctl_shown(z) : "-";
}

static void peer_row(struct ctl_table *t, const void *of)
{
	const peer *p = of;
	CTL_CELL(t, "PEER", "%s", p->name[0] != '\0' ? p->name : p->id);
	CTL_CELL(t, "ADDRESS", "%s", p->address);
	CTL_CELL(t, "SITE", "%s", or_dash(p->site));
	CTL_CELL(t, "STATE", "%s", p->state);
	CTL_CELL(t, "DISTANCE", "%s", p->distance);
	CTL_CELL(t, "BLOCKS", "%llu", (unsigned long long)p->blocks);
	CTL_CELL(t, "RTT MS", "%.2f", (double)p->rtt_us / 1000);
	CTL_CELL(t, "MIB/S", "%.0f", in_mib(p->bytes_per_second));
	CTL_CELL(t, "FETCHED", "%llu", (unsigned long long)p->fetched);
	CTL_CELL(t, "FETCHED MIB", "%.1f", in_mib(p->fetched_bytes));
	CTL_CELL(t, "SERVED", "%llu", (unsigned long long)p->served);
	CTL_CELL(t, "SERVED MIB", "%.1f", in_mib(p->served_bytes));
	CTL_CELL(t, "REFUSED", "%llu", (unsigned long long)(p->missed + p->busy));
	CTL_CELL(t, "FAILED", "%llu", (unsigned long long)(p->failed + p->corrupt));
	CTL_CELL(t, "WHY", "%s", or_dash(p->why));
}

static void peers_text(const response *rs, struct ctl_table *table, struct cgn_buf *out)
{
	ctl_table_head(table, peer_row);
	for (size_t i = 0; i < rs->n_peers; i++)
		peer_row(table, rs->peers[i]);
	cgn_buf_fmt(out, "node      %s, reached at %s, rack %s, region %s\n", ctl_shown(rs->node_id),
		or_dash(rs->quic_address), or_dash(rs->rack), or_dash(rs->region));
	cgn_buf_fmt(out,
		"now       %llu fetched, %llu sent to others (%.1f MiB of them owed), %llu connections from others\n",
		(unsigned long long)rs->fetching, (unsigned long long)rs->serving, in_mib(rs->owed_bytes),
		(unsigned long long)rs->guests);
	cgn_buf_fmt(out, "index     %llu blocks of peers, %.1f of %.1f MiB\n",
		(unsigned long long)rs->index_blocks, in_mib(rs->index_bytes), in_mib(rs->index_max_bytes));
	if (rs->handshakes_failed > 0)
		cgn_buf_fmt(out, "refusals  %llu, the last %.1f s ago: %s\n",
			(unsigned long long)rs->handshakes_failed, (double)rs->last_refusal_ms / 1000,
			or_dash(rs->last_refusal));
}

/* ---- sites ---- */
static void sites_json(const response *rs, struct cgn_buf *out)
{
	struct json_out o = json_out_to(out);
	pb_json_select(&o, rs, "sites{" SITE_MEMBERS "}");
	cgn_buf_char(out, '\n');
}

static void site_row(struct ctl_table *t, const void *of)
{
	const Cognitora__V1__KvSite *s = of;
	CTL_CELL(t, "SITE", "%s", s->name);
	CTL_CELL(t, "STATE", "%s", s->state);
	CTL_CELL(t, "READY", "%llu/%llu", (unsigned long long)s->ready, (unsigned long long)s->peers);
	CTL_CELL(t, "GUESTS", "%llu", (unsigned long long)s->guests);
	CTL_CELL(t, "IN MIB", "%.1f", in_mib(s->bytes_in));
	CTL_CELL(t, "OUT MIB", "%.1f", in_mib(s->bytes_out));
	CTL_CELL(t, "NO TENANT", "%llu", (unsigned long long)s->withheld_no_tenant);
	CTL_CELL(t, "TENANT", "%llu", (unsigned long long)s->withheld_tenant);
	CTL_CELL(t, "MODEL", "%llu", (unsigned long long)s->withheld_model);
	CTL_CELL(t, "REFUSED", "%llu", (unsigned long long)s->handshakes_failed);
	CTL_CELL(t, "LAST REFUSAL", "%s", or_dash(s->last_refusal));
}

static void sites_text(const response *rs, struct ctl_table *table)
{
	ctl_table_head(table, site_row);
	for (size_t i = 0; i < rs->n_sites; i++)
		site_row(table, rs->sites[i]);
}

static CGN_RC peers_ask(const struct ctl_args *a, response **out, struct cgn_err *err)
{
	const Cognitora__V1__KvPeersRequest rq = COGNITORA__V1__KV_PEERS_REQUEST__INIT;
	struct ctl_call call = {.method = "Peers",
		.answer = &cognitora__v1__kv_peers_response__descriptor,
		.request = &rq,
		.first = out};
	CGN_TRY(ctl_timeout(a, 0, &call.timeout, err));
	return ctl_client_call(a, CTL_STORE, &call, err);
}

CGN_RC ctl_kv_sites(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(pb_free) response *rs = NULL;
	struct cgn_buf out = {0};
	struct ctl_table table = {0};
	CGN_TRY(peers_ask(a, &rs, err));
	if (a->json) {
		sites_json(rs, &out);
		return ctl_print(&out, err);
	}
	sites_text(rs, &table);
	return ctl_table_print(&table, false, err);
}

CGN_RC ctl_kv_peers(const struct ctl_args *a, struct cgn_err *err)
{
	CGN_ON_EXIT(pb_free) response *rs = NULL;
	struct cgn_buf out = {0};
	struct ctl_table table = {0};
	CGN_TRY(peers_ask(a, &rs, err));
	if (a->json) {
		peers_json(rs, &out);
		return ctl_print(&out, err);
	}
	peers_text(rs, &table, &out);
	CGN_TRY(ctl_print(&out, err));
	return ctl_table_print(&table, false, err);
}

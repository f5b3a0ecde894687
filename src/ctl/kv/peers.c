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

static void peer_row(const peer *p, struct ctl_table *t)
{
	ctl_table_cell(t, "%s", p->name[0] != '\0' ? p->name : p->id);
	ctl_table_cell(t, "%s", p->address);
	ctl_table_cell(t, "%s", or_dash(p->site));
	ctl_table_cell(t, "%s", p->state);
	ctl_table_cell(t, "%s", p->distance);
	ctl_table_cell(t, "%llu", (unsigned long long)p->blocks);
	ctl_table_cell(t, "%.2f", (double)p->rtt_us / 1000);
	ctl_table_cell(t, "%.0f", in_mib(p->bytes_per_second));
	ctl_table_cell(t, "%llu", (unsigned long long)p->fetched);
	ctl_table_cell(t, "%.1f", in_mib(p->fetched_bytes));
	ctl_table_cell(t, "%llu", (unsigned long long)p->served);
	ctl_table_cell(t, "%.1f", in_mib(p->served_bytes));
	ctl_table_cell(t, "%llu", (unsigned long long)(p->missed + p->busy));
	ctl_table_cell(t, "%llu", (unsigned long long)(p->failed + p->corrupt));
	ctl_table_cell(t, "%s", or_dash(p->why));
}

static void peers_text(const response *rs, struct ctl_table *table, struct cgn_buf *out)
{
	static const char *const columns[] = {"PEER", "ADDRESS", "SITE", "STATE", "DISTANCE", "BLOCKS",
		"RTT MS", "MIB/S", "FETCHED", "FETCHED MIB", "SERVED", "SERVED MIB", "REFUSED", "FAILED",
		"WHY"};
	for (size_t i = 0; i < CGN_COUNT(columns); i++)
		ctl_table_column(table, columns[i], i >= 5 && i <= 13);
	for (size_t i = 0; i < rs->n_peers; i++)
		peer_row(rs->peers[i], table);
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

static void site_row(const Cognitora__V1__KvSite *s, struct ctl_table *t)
{
	const uint64_t counts[] = {s->withheld_no_tenant, s->withheld_tenant, s->withheld_model,
		s->handshakes_failed};
	ctl_table_cell(t, "%s", s->name);
	ctl_table_cell(t, "%s", s->state);
	ctl_table_cell(t, "%llu/%llu", (unsigned long long)s->ready, (unsigned long long)s->peers);
	ctl_table_cell(t, "%llu", (unsigned long long)s->guests);
	ctl_table_cell(t, "%.1f", in_mib(s->bytes_in));
	ctl_table_cell(t, "%.1f", in_mib(s->bytes_out));
	for (size_t i = 0; i < CGN_COUNT(counts); i++)
		ctl_table_cell(t, "%llu", (unsigned long long)counts[i]);
	ctl_table_cell(t, "%s", or_dash(s->last_refusal));
}

static void sites_text(const response *rs, struct ctl_table *table)
{
	static const char *const columns[] = {"SITE", "STATE", "READY", "GUESTS", "IN MIB", "OUT MIB",
		"NO TENANT", "TENANT", "MODEL", "REFUSED", "LAST REFUSAL"};
	for (size_t i = 0; i < CGN_COUNT(columns); i++)
		ctl_table_column(table, columns[i], i >= 2 && i <= 9);
	for (size_t i = 0; i < rs->n_sites; i++)
		site_row(rs->sites[i], table);
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

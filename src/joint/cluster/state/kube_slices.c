/* SPDX-License-Identifier: Apache-2.0 */
/* kube_slices: the addresses of the agents' Service (EndpointSlices). A pod that is deleted, or whose machine is lost, leaves
 * them before its Lease ends. Nodes outside of Kubernetes are in no slice: only an address that was there can leave. */
#include <stdlib.h>

#include "base/log/log.h"
#include "joint/cluster/state/kube_priv.h"

struct slice_scan {
	struct kube_slices *k;
	const char *slice;
	bool every; /* Entries of every slice. */
};

/* The entry of an address is "ADDRESS", and its slice is in the entry's node as the address. */
static void address_gone(void *arg, struct roster_entry *e)
{
	struct slice_scan *scan = arg;
	char address[PROTO_MAX_ID + 1];
	if (!e->marked || (!scan->every && strcmp(e->node->address, scan->slice) != 0))
		return;
	(void)cgn_str_copyz(address, sizeof address, cgn_str_of(e->id));
	roster_drop(&scan->k->addresses, e);
	scan->k->on_gone(scan->k->user, address);
}

static void slice_mark(void *arg, struct roster_entry *e)
{
	const struct slice_scan *scan = arg;
	if (strcmp(e->node->address, scan->slice) == 0)
		e->marked = true;
}

/* An address of the slice. One that another slice has too belongs to the last one that named it. */
static void address_seen(struct kube_slices *k, const char *address, const char *slice)
{
	Cognitora__V1__Node node = COGNITORA__V1__NODE__INIT;
	struct roster_entry *e = roster_find(&k->addresses, address);
	node.id = (char *)(uintptr_t)address;
	node.address = (char *)(uintptr_t)slice;
	Cognitora__V1__Node *copy = proto_node_dup(&node);
	if (copy != NULL && e == NULL && k->addresses.n < STATE_MAX_NODES)
		e = roster_add(&k->addresses, address);
	if (copy == NULL || e == NULL) {
		proto_node_free(&copy);
		return;
	}
	proto_node_free(&e->node);
	e->node = copy;
	e->marked = false;
}

/* A pod that ends keeps its address there until it is gone: the agent itself says that it drains. */
static void endpoint_read(struct kube_slices *k, struct json_val endpoint, const char *slice)
{
	struct json_val addresses, one;
	if (!json_get(endpoint, "addresses", &addresses) || addresses.type != JSON_ARRAY)
		return;
	for (struct json_iter it = json_iter_of(addresses); json_next_elem(&it, &one);) {
		CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.n = 0};
		if (one.type != JSON_STRING)
			continue;
		json_str_to(one, &text);
		if (text.n > 0 && text.n <= PROTO_MAX_ID)
			address_seen(k, cgn_buf_z(&text), slice);
	}
}

static void slice_read(struct kube_slices *k, struct json_val object, bool gone)
{
	char slice[KUBE_NAME];
	struct slice_scan scan = {.k = k, .slice = slice};
	struct json_val endpoints, one;
	if (!cgn_str_copyz(slice, sizeof slice, k8s_meta(object, "name")))
		return;
	roster_each(&k->addresses, slice_mark, &scan);
	if (!gone && json_get(object, "endpoints", &endpoints) && endpoints.type == JSON_ARRAY)
		for (struct json_iter it = json_iter_of(endpoints); json_next_elem(&it, &one);)
			endpoint_read(k, one, slice);
	if (!k->listing)
		roster_each(&k->addresses, address_gone, &scan);
}

static void on_slice(void *user, struct json_val object)
{
	slice_read(user, object, false);
}

static void on_slice_gone(void *user, struct json_val object)
{
	slice_read(user, object, true);
}

static void on_slices_begin(void *user)
{
	struct kube_slices *k = user;
	k->listing = true;
	roster_mark(&k->addresses);
}

static void on_slices_end(void *user)
{
	struct kube_slices *k = user;
	struct slice_scan scan = {.k = k, .slice = "", .every = true};
	k->listing = false;
	roster_each(&k->addresses, address_gone, &scan);
}

/* Without EndpointSlices the Leases decide. */
static void on_slices_connected(void *user, bool connected, const char *why)
{
	const struct kube_slices *k = user;
	if (!connected)
		cgn_log_limited(WARN, "state.slices_lost", F_STR("service", k->service), F_STR("why", why),
			F_STR("then", "agents leave when their leases end"));
}

static const struct k8s_watch_ops slice_ops = {.news = {on_slices_begin, on_slices_end, on_slices_connected},
	.on_object = on_slice,
	.on_gone = on_slice_gone};

CGN_RC kube_slices_open(struct kube_slices *k, const struct kube_place *place, const char *service,
	void (*on_gone)(void *user, const char *address), void *user, struct cgn_err *err)
{
	char path[KUBE_MAX_PATH], query[200];
	k->on_gone = on_gone;
	k->user = user;
	(void)cgn_str_copyz(k->service, sizeof k->service, cgn_str_of(service));
	(void)snprintf(path, sizeof path, "/apis/discovery.k8s.io/v1/namespaces/%s/endpointslices",
		place->space);
	(void)snprintf(query, sizeof query, "labelSelector=kubernetes.io%%2Fservice-name%%3D%s", k->service);
	return k8s_watch_open(place->k8s, path, query, &slice_ops, k, &k->watch, err);
}

void kube_slices_close(struct kube_slices *k)
{
	k8s_watch_close(&k->watch);
	roster_fini(&k->addresses);
}

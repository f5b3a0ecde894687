/* SPDX-License-Identifier: Apache-2.0 */
/* names: the state, name and place of a peer, and the memory that outlives peers and guests. */
#include <stdlib.h>

#include "joint/kv/kvpeer/kvpeer_priv.h"

void kvpeer_peer_move(struct kvpeer_peer *p, enum peer_state to)
{
	static const unsigned exits[] = {
#define TO(state)            1U << PEER_##state
#define PEER(id, exits, why) [PEER_##id] = (exits),
#include "joint/kv/kvpeer/states.def"
#undef TO
	};
	CGN_MUST((exits[p->state] & 1U << to) != 0);
	p->state = to;
}

char *kvpeer_text(struct cgn_str s)
{
	return cgn_str_dupz(s.n > 0 ? s : CGN_STR(""));
}

const char *kvpeer_name(struct kvpeer *kp, const char *z)
{
	for (const struct kvpeer_name *n = kp->names; n != NULL; n = n->next)
		if (strcmp(n->z, z) == 0)
			return n->z;
	size_t bytes = strlen(z) + 1;
	if (kp->n_names == KVPEER_MAX_NAMES)
		return NULL;
	struct kvpeer_name *n = cgn_zeroed(1, sizeof *n + bytes, CGN_HERE);
	memcpy(n->z, z, bytes);
	n->next = kp->names;
	kp->names = n;
	kp->n_names++;
	return n->z;
}

void kvpeer_place(struct kvpeer_peer *p)
{
	struct kvpeer *kp = p->kp;
	struct kvfetch_place ours = {cgn_str_of(kp->rack), cgn_str_of(kp->region)},
			     theirs = {cgn_str_of(p->rack), cgn_str_of(p->region)};
	/* Another site is far away, whatever names it gives its racks. */
	p->distance = kvpeer_is_here(p->site) ? kvfetch_distance(&ours, &theirs) : KVFETCH_FAR;
	atomic_store(&kp->slots[p->slot].site, (uint8_t)p->site->index);
	atomic_store(&kp->slots[p->slot].distance, (uint8_t)p->distance);
	atomic_store(&kp->slots[p->slot].name, kvpeer_name(kp, p->id));
}

void kvpeer_guest_is(struct kvpeer_guest *g, struct cgn_str name)
{
	char *z = kvpeer_text(name);
	g->name = kvpeer_name(g->kp, z);
	free(z);
}

void kvpeer_release(struct kvpeer *kp)
{
	if (!kp->buried || kp->n_serves > 0)
		return;
	for (unsigned i = 0; i < kp->n_readers; i++)
		kvindex_reader_free(&kp->readers[i].reader);
	free(kp->readers);
	if (kp->index != NULL)
		kvindex_free(&kp->index);
	for (struct kvpeer_name *n = kp->names, *next; n != NULL; n = next) {
		next = n->next;
		free(n);
	}
	free(kp->node);
	free(kp->rack);
	free(kp->region);
	kp->tag = 0;
	free(kp);
}

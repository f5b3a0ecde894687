/* SPDX-License-Identifier: Apache-2.0 */
/* documents: the texts that operators write for all routers: the routing policy, the wanted models, and the invites
 * of new machines. */
#pragma once
#include <stdbool.h>

#include "base/core/buf.h"

enum state_document { STATE_POLICY, STATE_MODELS, STATE_INVITES, STATE_DOCUMENTS };
struct state_text {
	struct cgn_buf text; /* As it was written; empty: there is none */
	uint64_t version;    /* Grows with each change of |text| */
	bool marked;         /* Not confirmed yet by the snapshot that is being read */
	char *where;         /* Key or file; set by the backend's open */
};

struct state_watch;
/* "policy", "models", "invites": the end of the file's name. */
const char *state_document_name(enum state_document d);
/* "a policy document", "the document of wanted models", ... */
const char *state_document_title(enum state_document d);
size_t state_document_most(enum state_document d); /* Return the most bytes that it may have. */
/* The document is |text| now, empty: there is none any more. Tell the owner of a change. */
void state_document_seen(struct state_watch *s, enum state_document d, struct cgn_str text);
void state_document_tell(struct state_watch *s, enum state_document d); /* Tell the owner what it is. */

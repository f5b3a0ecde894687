/* SPDX-License-Identifier: Apache-2.0 */
#include "lab/enginemodel/contents.h"

#include <stdlib.h>

#include "base/core/err.h"

struct enginemodel_salt *enginemodel_salt_ref(struct enginemodel_salt *s)
{
	if (s != NULL)
		s->refs++;
	return s;
}

void enginemodel_salt_unref(struct enginemodel_salt **take)
{
	struct enginemodel_salt *s = CGN_TAKE(take);
	if (s != NULL && --s->refs == 0)
		free(s);
}

void enginemodel_contents_free(struct enginemodel_contents **take)
{
	struct enginemodel_contents *t = CGN_TAKE(take);
	if (t == NULL)
		return;
	free(t->tokens);
	free(t->digests);
	free(t->names);
	free(t->images);
	enginemodel_salt_unref(&t->salt);
	free(t);
}

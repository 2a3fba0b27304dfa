/*-------------------------------------------------------------------------
 *
 * changes.c
 *	  The changes of this transaction, in the order in which they were made.
 *
 * An array: a subtransaction that rolls back has made the last ones of it.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/memutils.h"

#include "tableam/changes.h"

/* In TopTransactionContext. */
static MipChange *changes;
static int64 count;
static int64 room;

static void
make_room(void)
{
	if (changes == NULL)
	{
		room = 64;
		changes = MemoryContextAlloc(TopTransactionContext, room * sizeof(MipChange));
	}
	else
	{
		room *= 2;
		changes = repalloc_huge(changes, mul_size(room, sizeof(MipChange)));
	}
}

int64
mip_changes_append(const MipLink *link)
{
	/* so the last ones are those of subtransactions that end */
	Assert(count == 0 || changes[count - 1].subid <= GetCurrentSubTransactionId());
	if (count == room)
		make_room();
	changes[count].link = *link;
	changes[count].subid = GetCurrentSubTransactionId();
	return count++;
}

int64
mip_changes_count(void)
{
	return count;
}

const MipChange *
mip_changes_get(int64 number)
{
	Assert(number >= 0 && number < count);
	return &changes[number];
}

void
mip_changes_at_eosubxact(bool commit, SubTransactionId mine,
						 SubTransactionId parent,
						 void (*forget) (const MipChange *change))
{
	int64		first = count;

	while (first > 0 && changes[first - 1].subid >= mine)
	{
		first--;
		if (commit)
			changes[first].subid = parent;
		else
			forget(&changes[first]);
	}
	if (!commit)
		count = first;
}

/* The array goes with TopTransactionContext. */
void
mip_changes_at_eoxact(void)
{
	changes = NULL;
	count = room = 0;
}

/*-------------------------------------------------------------------------
 *
 * room.h
 *	  Has an index room for the entries of a row, wherever it is applied?
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_WRITESET_ROOM_H
#define MIP_WRITESET_ROOM_H

#include "nodes/execnodes.h"
#include "utils/rel.h"

typedef struct MipRoom MipRoom;

/* Errors out if that cannot be told by the values of a row. */
extern MipRoom *mip_room_open(Relation index);

/* Is there room for some, and none for others? */
extern bool mip_room_goes_by_values(const MipRoom *room);

/* Has it entries of several rows, which may have no room for some more? */
extern bool mip_room_is_shared(const MipRoom *room);

/* As if all of it had been read: has it been compressed, or out of line? In the current memory context. */
extern bool mip_row_expand(TupleTableSlot *row);

/* Errors out if there is none. Code of the index is executed, also where all rows have room. */
extern void mip_room_check_row(MipRoom *room, IndexInfo *info, TupleTableSlot *row, EState *estate);

#endif							/* MIP_WRITESET_ROOM_H */

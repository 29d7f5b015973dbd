-- Search: an ended todo is found by its idempotency key, however old. Written when a todo with a key ends, not when
-- it is created or claimed. Live ones are found by todos_live_key; titles have no index (functions/search says why).

create index if not exists todos_ended_key on switchboard.todos (endpoint_id, idempotency_key, id)
    where completed_at is not null and idempotency_key is not null;

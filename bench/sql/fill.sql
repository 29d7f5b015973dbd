-- Loads todos in bulk, as the owner of the tables: what many creates (and, for done ones, claims and completes) leave
-- behind, without their time. Ids are time-ordered like those of create_todo; todos go round the queues in turn.
--   %(endpoint)s  uuid          %(queues)s  text[]      %(count)s  how many       %(state)s  pending, done, claimed, parked
--   %(assignee)s  text or NULL  %(oldest)s  timestamptz of the first              %(step)s   interval from one to the next
--   %(payload)s   jsonb         %(numbered)s  text: title prefix
insert into switchboard.todos
    (endpoint_id, id, queue, state, title, payload, kind, source, assignee, trust_mode, created_at, updated_at,
     attempt, claims, owner, claimed_at, lease_seconds, due_at, lease_token, completed_at, result)
select
    %(endpoint)s::uuid,
    (encode(substring(int8send((extract(epoch from t.at) * 1000)::bigint) from 3), 'hex')
        || '7' || lpad(to_hex((extract(microseconds from t.at)::bigint %% 1000) * 4), 3, '0')
        || '8' || substr(md5(random()::text), 1, 15))::uuid,
    (%(queues)s::text[])[1 + t.i %% cardinality(%(queues)s::text[])],
    (case %(state)s when 'parked' then 'failed' else %(state)s end)::switchboard.todo_state,
    %(numbered)s || ' ' || t.i, %(payload)s::jsonb, 'bench', 'bench/run', %(assignee)s, 'sql', t.at, t.at,
    u.used::int, u.used::int,
    case when u.used then 'bench-loader' end,
    case when u.used then t.at end,
    case when u.used then 300 end,
    case when %(state)s in ('claimed', 'parked') then clock_timestamp() + interval '12 hours' end,
    case when %(state)s = 'claimed' then substr(md5(random()::text), 1, 12) end,
    case when %(state)s = 'done' then t.at + interval '1 second' end,
    case when %(state)s = 'done' then '{"ok": true}'::jsonb end
from (select i, %(oldest)s::timestamptz + i * %(step)s::interval as at
        from generate_series(0, %(count)s - 1) i) t,
     (select %(state)s <> 'pending' as used) u

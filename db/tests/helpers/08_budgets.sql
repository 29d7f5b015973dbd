-- Budgets for isolation specs, where braces end a step.

-- Sets the budget of a queue of `a`: p_claims a week of UTC (hardly any run meets a boundary), p_flight held.
create function test.set_budget(p_queue text, p_claims int, p_flight int default null) returns void language sql as $$
    select switchboard.set_admission_policy(test.a(), p_queue, jsonb_strip_nulls(jsonb_build_object('max_in_flight', p_flight, 'max_claims_per_window', p_claims,
        'window', case when p_claims is not null then '{"period": "week", "tz": "UTC"}'::jsonb end)))
$$;

create function test.clear_budget(p_queue text) returns void language sql as $$ select switchboard.clear_admission_policy(test.a(), p_queue) $$;

-- What each budget of `a` spent, and what is held of its queue: `q 1 spent 1 charged 1 held`, one a line.
create function test.spent() returns setof text language sql as $$
    select format('%s %s spent %s charged %s held', p.queue,
        (select coalesce(sum(w.used), 0) from switchboard.admission_windows w where w.policy_id = p.id), p.charged,
        (select count(*) from switchboard.todos t where t.endpoint_id = p.endpoint_id and t.queue = p.queue and t.state = 'claimed'))
    from switchboard.admission_policies p order by p.queue
$$;
